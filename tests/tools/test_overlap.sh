#!/usr/bin/env bash
# test_overlap.sh BUILD - dcomm-overlap: rows, JSON, exit codes.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
tool=$build/dcomm-overlap
if [ ! -x "$tool" ]; then
    skip "dcomm-overlap" "not built"
    finish
fi
run() {
    timeout 60 "$build/dcomm-run" -n 2 -- "$tool" --bytes 1M --params 8 --steps 3 "$@"
}

for progress in calls thread none; do
    check "progress by $progress" run --progress $progress --buckets 128K,0 --json "$scratch/o.json"
done
check "JSON" python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert d["schema"] == 1 and d["tool"] == "dcomm-overlap" and d["progress"] == "none"
assert [r["buckets"] for r in d["results"]] == [8, 1], d
assert all(r["step_ms"] > 0 and r["alone_ms"] > 0 for r in d["results"]), d' "$scratch/o.json"
check "through a codec" run --codec qsgd:bits=8 --backward-ms 2 --trace "$scratch/trace.json"
check "the trace is JSON" python3 -m json.tool "$scratch/trace.json" /dev/null
check "help" "$tool" --help
expect "no such size" 2 "--buckets 3Q: it must be a whole number from " "$tool" --buckets 3Q
expect "no such algorithm" 2 "--algo: .wheel. is none of hier, " run --algo wheel
expect "unknown option" 2 "unknown option" "$tool" --speed 11
finish
