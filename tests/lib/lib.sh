# lib.sh - what the script tests share: TAP lines, a scratch directory, the end of the script.
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export DCOMM_TUNE_CACHE=off # tests measure, where they measure, and leave nothing behind
bad=0
skipped=0

# full: in a run with --full. The everyday run leaves out what is dear and differs little from what it has.
full() {
    [ -n "${DCOMM_TEST_FULL:-}" ]
}

# ok NAME STATUS: one line for one check; on failure followed by what the check wrote to $out.
out=$scratch/out
ok() {
    if [ "$2" -eq 0 ]; then
        echo "ok - $1"
    else
        echo "not ok - $1"
        tail -n 40 "$out" 2>/dev/null | sed 's/^/    /'
        bad=$((bad + 1))
    fi
    : >"$out"
}

# check NAME COMMAND...: the command, which must exit with 0.
check() {
    local name=$1
    shift
    "$@" >"$out" 2>&1 </dev/null
    ok "$name" $?
}

# expect NAME STATUS PATTERN COMMAND...: the command must exit so and print a line that matches.
expect() {
    local name=$1 status=$2 pattern=$3 got
    shift 3
    "$@" >"$out" 2>&1 </dev/null
    got=$?
    if [ $got -ne "$status" ]; then
        echo "exit status $got, not $status" >>"$out"
        ok "$name" 1
    elif ! grep -qE -e "$pattern" "$out"; then
        echo "no line matches: $pattern" >>"$out"
        ok "$name" 1
    else
        ok "$name" 0
    fi
}

# skip NAME WHY: said, and not counted.
skip() {
    echo "# skipped: $1 ($2)"
    skipped=$((skipped + 1))
}

finish() {
    exit $((bad > 0))
}
