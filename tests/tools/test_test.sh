#!/usr/bin/env bash
# test_test.sh - tools/test.sh itself, in a tree of its own where Meson, Ninja and the tests are small
# stand-ins: what counts as passed, failed and skipped, and with which options it builds.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
root=$PWD
export OPTIONS=$scratch/options

# tree SUITES: a fresh tree, entered; its build directory then has these suites of Criterion and a script.
tree() {
    local tests=()
    rm -rf "$scratch/tree"
    mkdir -p "$scratch/tree"/{tools,bin,tests/{lib,tools},build/{tests,meson-info}}
    cd "$scratch/tree" || exit 2
    cp "$root/tools/test.sh" tools/
    cp "$root"/tests/lib/{tests.py,suite.sh} tests/lib/
    touch build/build.ninja # configured before, by quickstart.sh
    printf '#!/bin/sh\necho "$@" >>"%s"\n' "$OPTIONS" >bin/meson
    printf '#!/bin/sh\n' | tee bin/ninja >tests/tools/warnings.py
    for suite in $1; do # which writes what $TAP holds to the file of --tap=FILE, and $REPORT as a sanitizer
        printf '#!/bin/sh\nfor a; do case $a in --tap=*) printf "$TAP" >"${a#--tap=}" ;; esac; done\n' \
            >"build/tests/$suite"
        printf 'to=${ASAN_OPTIONS#log_path=}\n[ -z "$REPORT" ] || echo "$REPORT" >"${to%%%%:*}.7"\n' \
            >>"build/tests/$suite"
        tests+=("$(known "$suite" "\"tests/lib/suite.sh\", \"build/tests/$suite\"")")
    done
    if [ -n "$1" ]; then
        printf '#!/bin/sh\necho "ok - a script"\n' >tests/tools/one.sh
        tests+=("$(known one '"tests/tools/one.sh"')")
    fi
    (IFS=,; echo "[${tests[*]}]") >build/meson-info/intro-tests.json
    chmod +x bin/* tests/tools/* build/tests/* 2>/dev/null
    : >"$OPTIONS"
}
known() { # NAME COMMAND: a test as Meson describes it
    printf '{"name": "%s", "suite": ["dcomm:tools", "dcomm:gcc"], "is_parallel": false, "timeout": 60, ' "$1"
    printf '"protocol": "tap", "env": {}, "cmd": [%s]}' "$2"
}

# last STATUS LINE [STAGE]: test.sh must exit so, and with this last line.
last() {
    local status=$1 line=$2 got
    PATH=$PWD/bin:$PATH tools/test.sh --stage "${3:-gcc}" >"$out" 2>&1 </dev/null
    got=$?
    [ $got -eq "$status" ] && [ "$(tail -n 1 "$out")" = "$line" ] && return
    echo "exit status $got, not $status; or the last line is not: $line" >>"$out"
    return 1
}

tree "suite"
export TAP='ok - a::one\nok - a::two\n' REPORT=
last 0 "6 passed, 0 failed"
ok "a suite of two tests, a script, two steps and a check" $?
for option in tests=true bench=true examples=true fuzz=false b_sanitize=none werror=true; do
    expect "a directory that quickstart.sh configured gets $option" 0 "^configure build .*-D$option" \
        cat "$OPTIONS"
done

expect "and how long the stage took" 0 "^stage gcc: [0-9]+ s$" env PATH="$PWD/bin:$PATH" tools/test.sh --stage gcc

sed -i '0,/dcomm:gcc"/s//dcomm:gcc-full"/' build/meson-info/intro-tests.json
last 0 "4 passed, 0 failed"
ok "a suite that the everyday run leaves out" $?
expect "is among those of --full" 0 "^6 passed, 0 failed$" env PATH="$PWD/bin:$PATH" tools/test.sh --full --stage gcc
sed -i 's/gcc-full/gcc/' build/meson-info/intro-tests.json

TAP='ok - a::one\nok - a::two  # SKIP needs 4 GiB\n'
printf '#!/bin/sh\necho "ok - a script"\necho "# skipped: a part (no GPU)"\n' >tests/tools/one.sh
last 0 "5 passed, 0 failed, 2 skipped"
ok "skips are counted" $?
check "and named, with their reasons" eval '
    PATH=$PWD/bin:$PATH tools/test.sh --stage gcc | tail -n 3 >"$scratch/end"; cat "$scratch/end"
    grep -qx "skipped: gcc.suite: a::two (needs 4 GiB)" "$scratch/end" &&
    grep -qx "skipped: gcc.one: a part (no GPU)" "$scratch/end"'

TAP=
last 1 "4 passed, 1 failed, 1 skipped"
ok "a suite that wrote nothing has failed" $?
TAP='1..0\n'
last 1 "4 passed, 1 failed, 1 skipped"
ok "so has one of no test" $?
TAP='ok - a::one\nnot ok - a::two\n'
last 1 "5 passed, 1 failed, 1 skipped"
ok "a failed test is counted once" $?
TAP='ok - a::one\n'
printf '#!/bin/sh\n' >tests/tools/one.sh
last 1 "4 passed, 1 failed"
ok "a script that ran no test has failed" $?
printf '#!/bin/sh\necho "# skipped: all of it (no clang)"\n' >tests/tools/one.sh
last 0 "4 passed, 0 failed, 1 skipped"
ok "unless it named what it skipped" $?

REPORT="ERROR: AddressSanitizer: heap-use-after-free"
last 1 "4 passed, 1 failed, 1 skipped"
ok "a sanitizer's report is a failure" $?
REPORT=

tree ""
last 1 "3 passed, 1 failed"
ok "no suites: failed" $?
expect "and why" 1 "failed: gcc: no test in build" env PATH="$PWD/bin:$PATH" tools/test.sh --stage gcc
tree "suite"
mkdir -p build-tsan/meson-info
touch build-tsan/build.ninja
echo '[]' >build-tsan/meson-info/intro-tests.json
last 1 "2 passed, 1 failed" tsan
ok "a stage without tests has failed" $?
expect "and says so" 1 "failed: tsan: no test in build-tsan" env PATH="$PWD/bin:$PATH" tools/test.sh --stage tsan
finish
