#!/usr/bin/env bash
# matrix.sh BUILD - every operation for real, by every algorithm, each element checked:
# pairs of (operation, ranks, type, operator, size, in place, root); with DCOMM_TEST_FULL=1 all of them.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
seconds=120
all=()
[ -z "${DCOMM_TEST_FULL:-}" ] || { seconds=3600 all=(--full); }
if [ ! -x "$build/dcomm-perf" ]; then
    skip "the matrix" "dcomm-perf is not built"
    finish
fi
while read -r ranks case; do
    # shellcheck disable=SC2086
    check "$ranks ranks: $case" "$build/dcomm-run" -n "$ranks" --timeout $seconds -- \
        "$build/dcomm-perf" $case --algo all -c 1 -n 1 -w 0
done < <(tests/tools/matrix.py "${all[@]}")
finish
