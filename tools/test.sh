#!/usr/bin/env bash
# test.sh - from a fresh machine to tested. The last line is "N passed, N failed", and ", N skipped"
# where something was skipped; each skip is named above it, with its reason.
#
#   tools/test.sh [--full] [--stage NAME]...
#
# --full runs the whole run-for-real matrix, tests that need gigabytes, proofs for all numbers of
# ranks, and more steps where it is tested that nothing is lost. --stage runs only the named stages,
# of: setup house gcc header cuda examples matrix clang asan tsan fuzz.
# DCOMM_FUZZ_SECONDS is each fuzz target's time (default 5, with --full 30). Each executable
# tests/*/test_*.sh is a script test: it takes the build directory as its argument and prints TAP ("ok -
# name", "not ok - name") and "# skipped: name (reason)". A suite, script or stage that ran no test has
# failed, unless it named what it skipped.
set -u
cd "$(dirname "$0")/.." || exit 2

stages=(setup house gcc header cuda examples matrix clang asan tsan fuzz)
full=()
chosen=()
while [ $# -gt 0 ]; do
    case $1 in
    --full)
        full=(--full)
        export DCOMM_TEST_FULL=1 DCOMM_FUZZ_SECONDS=${DCOMM_FUZZ_SECONDS:-30}
        ;;
    --stage)
        [[ " ${stages[*]} " == *" ${2:-} "* ]] || { echo "test.sh: no stage '${2:-}'" >&2; exit 2; }
        chosen+=("$2")
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "test.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done
[ ${#chosen[@]} -gt 0 ] || chosen=("${stages[@]}")

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

# count NAME STATUS TAP LOG: count each line of a suite's TAP. One that exits badly without a failed
# line is one failure more, and so is one that says nothing.
count() {
    local name=$1 status=$2 tap=$3 log=$4 good bad left line
    bad=$(grep -c '^not ok ' "$tap" 2>/dev/null)
    good=$(grep '^ok ' "$tap" 2>/dev/null | grep -vc ' # SKIP')
    mapfile -t left < <(
        sed -n 's/^# skipped: //p' "$log"
        sed -n 's/^ok - \(.*[^ ]\)  *# SKIP *\(.*\)$/\1 (\2)/p' "$tap" 2>/dev/null
    )
    bad=${bad:-0}
    passed=$((passed + good))
    failed=$((failed + bad))
    ran=$((ran + good + bad))
    for line in "${left[@]}"; do
        skips+=("$name: $line")
    done
    if [ "$bad" -gt 0 ]; then
        while IFS= read -r line; do
            failures+=("$name: $line")
        done < <(grep '^not ok ' "$tap")
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

# script NAME FILE ARGUMENTS...: a test that prints TAP itself.
script() {
    local name=$1 log=$logs/$1.log
    shift
    timeout -k 10 "${script_timeout:-600}" "$@" >"$log" 2>&1 </dev/null
    count "$name" $? "$log" "$log"
}

# beside NAME FILE ARGUMENTS...: a script that mostly compiles, on a core of its own; `besides` counts
# them all.
begun=()
beside() {
    local name=$1
    shift
    room
    begun+=("$name")
    { timeout -k 10 1200 "$@" >"$logs/$name.log" 2>&1 </dev/null; echo $? >"$logs/$name.status"; } &
}

besides() {
    local name
    wait
    for name in "${begun[@]}"; do
        count "$name" "$(cat "$logs/$name.status")" "$logs/$name.log" "$logs/$name.log"
    done
    begun=()
}

# suppressions SANITIZER: the option that names its file of known reports, where there is one.
suppressions() {
    [ ! -e "tests/lib/$1.supp" ] || echo ":suppressions=$PWD/tests/lib/$1.supp"
}

# room: wait until a core has nothing to do for us.
room() {
    while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
}

# suite_run NAME EXECUTABLE: a Criterion suite, with the reports of a sanitizer into files.
suite_run() {
    local found=$logs/$1.sanitizer
    ASAN_OPTIONS=log_path=$found:detect_stack_use_after_return=1 \
        UBSAN_OPTIONS=log_path=$found:print_stacktrace=1 \
        LSAN_OPTIONS=log_path=$found:print_suppressions=0$(suppressions lsan) \
        timeout -k 10 600 "$2" -j1 --timeout 240 --tap="$logs/$1.tap" >"$logs/$1.log" 2>&1 </dev/null
    echo $? >"$logs/$1.status"
}

# suite_result NAME: count what it said. Criterion exits with 0 in spite of a sanitizer's report.
suite_result() {
    local name=$1 status report
    status=$(cat "$logs/$name.status")
    [ -s "$logs/$name.tap" ] || status=99 # Criterion itself did not get to its end
    count "$name" "$status" "$logs/$name.tap" "$logs/$name.log"
    for report in "$logs/$name.sanitizer".*; do
        grep -qsE 'ERROR|SUMMARY|runtime error' "$report" || continue # or only a note
        fail "$name: the sanitizer reports in $(basename "$report")"
        show "$report" 60
    done
}

# criterion STAGE DIRECTORY SUITE: its members, one after the other; but of those that start no ranks
# and measure no time, one on each core.
criterion() {
    local t list=$2/tests/single.list single
    if [ -z "$(suites "$2" "$3")" ]; then
        fail "$1: no suite was built in $2: is Criterion installed?"
        return 1
    fi
    single=$(suites "$2" "$3" | grep -xF -f "$list")
    for t in $single; do
        room
        suite_run "$1.$t" "$2/tests/$t" &
    done
    wait
    for t in $single; do
        suite_result "$1.$t"
    done
    for t in $(suites "$2" "$3" | grep -vxF -f "$list"); do
        suite_run "$1.$t" "$2/tests/$t"
        suite_result "$1.$t"
    done
}

# configure DIRECTORY MESON_OPTIONS...: a directory that is there may have been configured otherwise, by
# quickstart.sh for one: so every option that the tests rely on is given. -g1 names the lines in reports,
# and takes a third less time than -g.
configure() {
    local dir=$1
    shift
    set -- -Dtests=true -Dbench=true -Dexamples=true -Dfuzz=false -Db_sanitize=none -Dwerror=true \
        -Dwarning_level=3 -Doptimization=2 -Ddebug=true -Dc_args=-g1 "$@"
    if [ -f "$dir/build.ninja" ]; then # --reconfigure finds new options, and leaves c_args as they are
        meson configure "$dir" "$@" || meson setup --reconfigure "$dir" "$@"
    else
        rm -rf "$dir" && meson setup "$dir" "$@"
    fi
}

# The members of a suite of a build directory, from the list that meson wrote.
suites() {
    cat "$1/tests/$2.list" 2>/dev/null
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
    for f in tests/*/test_*.c tests/*/tsan_*.c tests/fuzz/fuzz_*.c examples/*.c examples/*.cpp examples/nccl/*.c bench/dcomm-*.c; do
        [ -e "$f" ] || continue
        case $f in
        tests/*) list=tests/meson.build ;;
        examples/*) list=examples/meson.build ;;
        *) list=meson.build ;;
        esac
        if ! grep -q "['/]$(basename "${f%.*}")\(\.c\|\.cpp\)\?'" "$list"; then
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
}

stage_gcc() {
    CC=gcc build "gcc" build "all checked" || return
    # Those that are tested with sanitizers alone are not among "all".
    check "gcc: no source that is not built has a warning" tests/tools/warnings.py build --unbuilt
    local t
    criterion gcc build criterion
    for t in tests/*/test_*.sh; do
        case $t in
        */test_cuda.sh | */test_nccl.sh) ;; # parts of the stage cuda
        *) [ ! -x "$t" ] || script "$(basename "$t" .sh)" "$t" "$PWD/build" ;;
        esac
    done
}

stage_header() {
    beside header tests/tools/header.sh "$PWD/build"
    beside same_bytes tests/codec/same_bytes.sh "$PWD/build"
    besides
}

stage_cuda() {
    local t
    for t in kernels/cuda kernels/test_cuda nccl/test_nccl; do
        beside "$(basename $t)" tests/$t.sh "$PWD/build"
    done
    besides
    DCOMM_GPU_BENCH=0 script gpu tests/device/gpu.sh "$PWD/build/gpu"
}

stage_examples() {
    script examples tests/tools/examples.sh "$PWD/build"
}

stage_matrix() {
    script_timeout=$([ ${#full[@]} -gt 0 ] && echo 86400 || echo 1200) \
        script matrix tests/tools/matrix.sh "$PWD/build" "${full[@]}"
}

stage_clang() {
    CC=clang CXX=clang++ build "clang" build-clang compiled -Doptimization=1 || return
    check "clang: no source has a warning" tests/tools/warnings.py build-clang
    criterion clang build-clang compiled
}

# gcc's own advice: what sanitizers insert misleads its warnings, and stage gcc had them all.
stage_asan() {
    CC=gcc build "asan" build-asan sanitized -Db_sanitize=address,undefined -Doptimization=1 \
        -Dwerror=false '-Dc_args=-g1 -fno-sanitize-recover=undefined' \
        -Dbench=false -Dexamples=false || return
    # hwloc's PCI plugin forgets what libpciaccess gave it, and is gone when that is reported.
    export UCX_MEM_MMAP_HOOK_MODE=none HWLOC_PLUGINS_BLACKLIST=hwloc_pci
    criterion asan build-asan sanitized
    unset UCX_MEM_MMAP_HOOK_MODE HWLOC_PLUGINS_BLACKLIST
}

stage_tsan() {
    CC=gcc build "tsan" build-tsan tsan -Db_sanitize=thread -Doptimization=1 -Dwerror=false \
        -Dbench=false -Dexamples=false || return
    local t
    # Address randomization of newer kernels is more than ThreadSanitizer bears.
    for t in $(suites build-tsan tsan); do
        check "tsan.$t" env UCX_MEM_MMAP_HOOK_MODE=none \
            TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1$(suppressions tsan)" \
            timeout -k 10 300 setarch -R "build-tsan/tests/$t"
    done
}

fuzz_one() {
    local t=$1 corpus=build-fuzz/corpus/$1 seeds=()
    mkdir -p "$corpus"
    [ ! -d "tests/fuzz/corpus/$t" ] || seeds=("tests/fuzz/corpus/$t")
    build-fuzz/tests/"$t" -max_total_time="${DCOMM_FUZZ_SECONDS:-5}" -timeout=10 \
        -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$logs/$t." "$corpus" \
        "${seeds[@]}" >"$logs/$t.run" 2>&1 </dev/null
    echo $? >"$logs/$t.status"
}

fuzz_result() {
    tail -n 60 "$logs/$1.run"
    return "$(cat "$logs/$1.status")"
}

stage_fuzz() {
    CC=clang build "fuzz" build-fuzz fuzz -Dfuzz=true -Doptimization=1 -Dbench=false \
        -Dexamples=false || return
    local t
    say "fuzz: ${DCOMM_FUZZ_SECONDS:-5} s for each of: $(suites build-fuzz fuzz | tr '\n' ' ')"
    for t in $(suites build-fuzz fuzz); do
        room
        fuzz_one "$t" &
    done
    wait
    for t in $(suites build-fuzz fuzz); do
        check "fuzz.$t" fuzz_result "$t"
    done
}

for stage in "${chosen[@]}"; do
    say "== $stage"
    before=$((ran + ${#skips[@]} + failed))
    "stage_$stage"
    [ $((ran + ${#skips[@]} + failed)) -gt $before ] || fail "$stage: ran no test"
done

say "done; logs are in build-logs/"
for line in "${skips[@]}"; do
    echo "skipped: $line"
done
for line in "${failures[@]}"; do
    echo "failed: $line"
done
echo "$passed passed, $failed failed$([ ${#skips[@]} -eq 0 ] || echo ", ${#skips[@]} skipped")"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
