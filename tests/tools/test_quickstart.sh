#!/usr/bin/env bash
# test_quickstart.sh - tools/quickstart.sh itself, in a tree of its own where the build, the training and the
# report are small stand-ins: what it builds, what it says on the way, and how it ends.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
mkdir -p "$scratch"/{tools,bin,build}
cp tools/quickstart.sh tools/configurations.sh "$scratch/tools/"
cd "$scratch" || exit 2
for stand_in in bin/meson bin/ninja tools/setup.sh build/dcomm-run; do
    printf '#!/bin/sh\necho "%s $@" >>"%s"\n' "$(basename $stand_in)" "$scratch/calls" >$stand_in
done
printf 'import sys\nprint("report", *sys.argv[1:])\n' >tools/report.py
chmod +x bin/* tools/setup.sh build/dcomm-run
PATH=$scratch/bin:$PATH
said=$scratch/said

quickstart() {
    tools/quickstart.sh --ranks 2 --steps 10 >"$said" 2>&1 </dev/null
    local got=$?
    cat "$said" calls 2>/dev/null
    return $got
}
check "a fresh clone" quickstart
expect "is configured without tests" 0 "^meson setup build .*-Dtests=false" cat calls
expect "every tool is built" 0 "^ninja -C build all " cat calls
expect "the first lines say how long it takes" 0 "ten minutes" head -n 3 "$said"
stages() { # each says its number, and how many there are; the last is the last
    grep -E '^== [0-9]+ of [0-9]+, after [0-9]+:[0-9]{2}: ' "$said" >shown
    awk '{print $2, $4}' shown | tr -d , >numbers
    cat shown && [ "$(awk '$1 != NR {exit 1} END {print $1 == $2}' numbers)" = 1 ]
}
check "stages are numbered to the end" stages
expect "it ends with what to do next" 0 "tools/test.sh" tail -n 2 "$said"
expect "there is a report" 0 "^report --perf build/quickstart/allreduce.json --html build/report.html" \
    cat "$said"

touch build/build.ninja
: >calls
check "once more" quickstart
expect "a directory that is there gets what it may lack" 0 \
    "^meson configure build -Dbench=true -Dexamples=true$" cat calls
check "and is not set up anew" eval '! grep "^meson setup" calls'

# Two busy cores, or as many as there are, are others' work.
for ((i = 0; i < $(nproc); i++)); do
    timeout 20 sh -c 'while :; do :; done' &
done
check "on a busy machine" quickstart
kill $(jobs -p)
expect "it warns" 0 "quickstart.sh: other programs use [0-9.]+ of [0-9]+ cores" cat "$said"
expect "and so does the report" 0 "^report .*While this was measured, other programs used" cat "$said"
finish
