#!/usr/bin/env bash
# test.sh - from a fresh machine to tested. The last line is "N passed, N failed", and ", N skipped"
# where something was skipped; each skip is named above it, with its reason, and the seconds of each stage.
#
#   tools/test.sh [--full] [--stage NAME]...
#
# The everyday run has a cheap test for each kind of fault. --full runs all: every suite with sanitizers,
# the kernels' whole comparison and every architecture of theirs, every compiler in every standard, the
# whole run-for-real matrix, tests that need gigabytes, proofs for all numbers of ranks, and more steps
# where it is tested that nothing is lost. --stage runs only the named stages,
# of: setup house gcc header cuda examples matrix clang asan tsan fuzz mutants. The last one,
# tools/mutants.py, is run with --full or by name only.
# DCOMM_FUZZ_SECONDS is each fuzz target's time (default 3, with --full 30). tests/meson.build lists the
# tests, each with its stages. A suite or a script prints TAP ("ok - name", "not ok - name") and "# skipped:
# name (reason)"; a script takes the build directory as its argument. A suite, script or stage that ran no
# test has failed, unless it named what it skipped.
set -u
cd "$(dirname "$0")/.." || exit 2

stages=(setup house gcc header cuda examples matrix clang asan tsan fuzz)
chosen=()
full=
level=1 quick_level=0 # of optimization: each takes half as long to compile as the next
while [ $# -gt 0 ]; do
    case $1 in
    --full)
        export DCOMM_TEST_FULL=1 DCOMM_FUZZ_SECONDS=${DCOMM_FUZZ_SECONDS:-30}
        full=1 level=2 quick_level=1
        ;;
    --stage)
        [[ " ${stages[*]} mutants " == *" ${2:-} "* ]] || { echo "test.sh: no stage '${2:-}'" >&2; exit 2; }
        chosen+=("$2")
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "test.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done
[ ${#chosen[@]} -gt 0 ] || chosen=("${stages[@]}" ${DCOMM_TEST_FULL:+mutants})

# What was compiled before, in this clone or another one, is taken from the compiler's cache.
if [ -d /usr/lib/ccache ]; then
    export PATH=/usr/lib/ccache:$PATH CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi

logs=$PWD/build-logs
rm -rf "$logs"
mkdir -p "$logs"
passed=0
failed=0
failures=()
skips=()
ran=0 # tests, other than steps on the way to them
jobs=$(nproc)

say() {
    printf '[%4d s] %s\n' "$SECONDS" "$*"
}

fail() {
    failed=$((failed + 1))
    failures+=("$1")
    say "FAILED: $1"
}

show() {
    [ -s "$1" ] && tail -n "${2:-80}" "$1" | sed 's/^/    /'
}

# check NAME COMMAND...: a test, passed when the command exits with 0.
check() {
    ran=$((ran + 1))
    step "$@"
}

# step NAME COMMAND...: counted like a test, but on the way to one: to configure, to build.
step() {
    local name=$1 log
    log=$logs/${name//[^A-Za-z0-9_.-]/_}.log
    shift
    if "$@" >"$log" 2>&1 </dev/null; then
        passed=$((passed + 1))
        say "ok: $name"
    else
        fail "$name"
        show "$log"
        return 1
    fi
}

# count NAME STATUS LOG: count each line of TAP in a log. A bad exit status without a failed line is one
# failure more, and so is a log without a test.
count() {
    local name=$1 status=$2 log=$3 good bad left line
    bad=$(grep -c '^not ok ' "$log")
    good=$(grep '^ok ' "$log" | grep -vc ' # SKIP')
    mapfile -t left < <(sed -n 's/^# skipped: //p; s/^ok - \(.*[^ ]\)  *# SKIP *\(.*\)$/\1 (\2)/p' "$log")
    passed=$((passed + good))
    failed=$((failed + bad))
    ran=$((ran + good + bad))
    for line in "${left[@]}"; do
        skips+=("$name: $line")
    done
    if [ "$bad" -gt 0 ]; then
        while IFS= read -r line; do
            failures+=("$name: $line")
        done < <(grep '^not ok ' "$log")
    elif [ "$status" -ne 0 ]; then
        fail "$name: $good good checks, then exit status $status"
        bad=1
    elif [ $((good + ${#left[@]})) -eq 0 ]; then
        fail "$name: ran no test"
        bad=1
    fi
    say "$name: $good passed, $bad failed"
    for line in "${left[@]}"; do
        say "    skipped: $line"
    done
    if [ "$bad" -gt 0 ]; then
        grep -v '^ok ' "$log" >"$log.bad"
        show "$log.bad" 120
    fi
}

# room: wait until a core has nothing to do for us.
room() {
    while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
}

# run NAME COMMAND: run a test; result NAME PROTOCOL: count it. One that does not speak TAP is one test.
run() {
    eval "$2" >"$logs/$1.log" 2>&1 </dev/null
    echo $? >"$logs/$1.status"
}
result() {
    local status
    status=$(cat "$logs/$1.status")
    if [ "$2" = tap ]; then
        count "$1" "$status" "$logs/$1.log"
    elif ran=$((ran + 1)) && [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        say "ok: $1"
    else
        fail "$1"
        show "$logs/$1.log"
    fi
}

# tests DIRECTORY STAGE: run the tests of this stage that the build directory has. Those that may run beside
# others (tests/meson.build) come first, one on each core; the rest run alone.
tests() {
    local name way protocol command list=$logs/$2.tests
    if ! tests/lib/tests.py "$1" "$2" >"$list" || [ ! -s "$list" ]; then
        fail "$2: no test in $1: is Criterion installed?"
        return 1
    fi
    while IFS=$'\t' read -r name way protocol command; do
        [ "$way" = beside ] || continue
        room
        run "$2.$name" "$command" &
    done <"$list"
    wait
    while IFS=$'\t' read -r name way protocol command; do
        [ "$way" = beside ] || run "$2.$name" "$command"
        result "$2.$name" "$protocol"
    done <"$list"
}

# configure DIRECTORY MESON_OPTIONS...: a directory that is there may have been configured otherwise, by
# quickstart.sh for one: so every option that the tests rely on is given. -g1 names the lines in reports,
# and takes a third less time than -g.
configure() {
    local dir=$1
    shift
    set -- -Dtests=true -Dbench=true -Dexamples=true -Dfuzz=false -Db_sanitize=none -Dwerror=true \
        -Dwarning_level=3 -Doptimization="$level" -Ddebug=true -Dc_args=-g1 "$@"
    if [ -f "$dir/build.ninja" ]; then # --reconfigure finds new options, and leaves c_args as they are
        meson configure "$dir" "$@" || meson setup --reconfigure "$dir" "$@"
    else
        rm -rf "$dir" && meson setup "$dir" "$@"
    fi
}

# build NAME DIRECTORY "TARGETS" MESON_OPTIONS...
build() {
    local name=$1 dir=$2 targets
    read -ra targets <<<"$3"
    shift 3
    step "$name: configure" configure "$dir" "$@" &&
        step "$name: build" ninja -C "$dir" -j "$jobs" "${targets[@]}"
}

stage_setup() {
    check "setup" tools/setup.sh
}

lists_complete() {
    local status=0 f
    for f in tests/*/test_*.c tests/*/tsan_*.c tests/*/*.sh tests/fuzz/fuzz_*.c examples/*.c examples/*.cpp \
        examples/nccl/*.c bench/dcomm-*.c; do
        [ -e "$f" ] || continue
        case $f in
        tests/lib/*) continue ;;
        tests/*) list=tests/meson.build ;;
        examples/*) list=examples/meson.build ;;
        *) list=meson.build ;;
        esac
        if ! grep -q "['/]$(basename "${f%.*}")\(\.c\|\.cpp\|\.sh\)\?'" "$list"; then
            echo "$f is not in $list"
            status=1
        fi
    done
    return $status
}

stage_house() {
    check "dcomm.h and dcomm_nccl.h are up to date" tools/amalgamate.py --check
    check "every source is in its meson.build" lists_complete
    check "each part is in its room" tools/house.py
    check "every mistake to be planted fits the code" tools/mutants.py --check
}

stage_gcc() {
    CC=gcc build "gcc" build "checked ${full:+gcc-full}" || return
    # Those that are tested with sanitizers alone are not among "all".
    check "gcc: no source that is not built has a warning" tests/tools/warnings.py build --unbuilt
    tests build gcc
}

stage_header() {
    tests build header
}

stage_cuda() {
    DCOMM_GPU_BENCH=0 tests build cuda
}

stage_examples() {
    tests build examples
}

stage_matrix() {
    tests build matrix
}

stage_clang() {
    CC=clang CXX=clang++ build "clang" build-clang "clang ${full:+clang-full} tests/lib/declarations.h" \
        -Doptimization="$quick_level" || return
    check "clang: no source has a warning" tests/tools/warnings.py build-clang
    tests build-clang clang
}

# sanitized DIRECTORY TARGETS MESON_OPTIONS...: what sanitizers insert takes long to optimize. It misleads gcc's
# warnings too; stage gcc had them all.
sanitized() {
    build "$stage" "$1" "$2" -Doptimization="$quick_level" -Dwerror=false \
        '-Dc_args=-g1 -fno-sanitize-recover=undefined' -Dbench=false -Dexamples=false "${@:3}"
}

stage_asan() {
    CC=gcc sanitized build-asan "asan ${full:+asan-full}" -Db_sanitize=address,undefined || return
    tests build-asan asan
}

stage_tsan() {
    CC=gcc sanitized build-tsan tsan -Db_sanitize=thread || return
    tests build-tsan tsan
}

stage_fuzz() {
    CC=clang sanitized build-fuzz fuzz -Dfuzz=true -Dwerror=true || return
    say "fuzz: ${DCOMM_FUZZ_SECONDS:-3} s for each target"
    tests build-fuzz fuzz
}

stage_mutants() {
    check "every planted mistake fails its test" nice -n 19 tools/mutants.py --again
}

spent=()
for stage in "${chosen[@]}"; do
    say "== $stage"
    before=$((ran + ${#skips[@]} + failed)) began=$SECONDS
    "stage_$stage"
    [ $((ran + ${#skips[@]} + failed)) -gt $before ] || fail "$stage: ran no test"
    spent+=("stage $stage: $((SECONDS - began)) s")
done

say "done; logs are in build-logs/"
printf '%s\n' "${spent[@]}"
for line in "${skips[@]}"; do
    echo "skipped: $line"
done
for line in "${failures[@]}"; do
    echo "failed: $line"
done
echo "$passed passed, $failed failed$([ ${#skips[@]} -eq 0 ] || echo ", ${#skips[@]} skipped")"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
