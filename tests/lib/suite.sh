#!/usr/bin/env bash
# suite.sh PROGRAM [ARGUMENT]... - run a suite of Criterion and print its TAP. Criterion leaves out three
# failures, which this script adds as a line each: a bad exit status, a sanitizer's report, no test at all.
# After a failure it prints what the suite wrote.
set -u
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
found=$scratch/report
ASAN_OPTIONS=log_path=$found:detect_stack_use_after_return=1 \
    UBSAN_OPTIONS=log_path=$found:print_stacktrace=1 \
    LSAN_OPTIONS=log_path=$found:print_suppressions=0:suppressions=$here/lsan.supp \
    "$1" -j1 --timeout 240 --tap="$scratch/tap" "${@:2}" >"$scratch/log" 2>&1 </dev/null
status=$?
[ -s "$scratch/tap" ] || status=99 # Criterion itself did not get to its end
bad=0
wrong() {
    echo "not ok - $1"
    bad=1
}

cat "$scratch/tap" 2>/dev/null
sed -n '/^# skipped: /p' "$scratch/log"
if grep -qs '^not ok ' "$scratch/tap"; then
    bad=1
elif [ $status -ne 0 ]; then
    wrong "exit status $status"
elif ! grep -qsE '^ok ' "$scratch/tap" && ! grep -q '^# skipped: ' "$scratch/log"; then
    wrong "ran no test"
fi
for report in "$found".*; do
    grep -qsE 'ERROR|SUMMARY|runtime error' "$report" || continue # or only a note
    wrong "the sanitizer's report"
    sed 's/^/    /' "$report"
done
if [ $bad -ne 0 ]; then
    grep -v '^ok ' "$scratch/log" | tail -n 120 | sed 's/^/    /'
fi
exit $bad
