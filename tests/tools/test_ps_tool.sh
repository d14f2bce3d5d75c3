#!/usr/bin/env bash
# test_ps_tool.sh BUILD - dcomm-ps: rows, JSON, exit codes.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
tool=$build/dcomm-ps
if [ ! -x "$tool" ]; then
    skip "dcomm-ps" "not built"
    finish
fi
run() {
    timeout 60 "$build/dcomm-run" -n 3 "$@"
}
small=("$tool" --bytes 256K --cols 64 --steps 3)

check "two numbers of servers" run --host-id-every 1 -- "${small[@]}" --servers 1,0 --json "$scratch/p.json"
check "JSON" python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert d["schema"] == 1 and d["tool"] == "dcomm-ps" and d["nranks"] == 3 and d["staleness"] == 0
assert d["rows"] == d["step_rows"] == 1024 and d["row_bytes"] == 256 and d["allreduce_us"] > 0
one, all = d["results"]
assert one["servers"] == 1 and all["servers"] == 3 and not one["wrong"] and not all["wrong"]
assert all["step_us_p95"] >= all["step_us_p50"] >= all["pull_us"] > 0
# A host each: two workers to one server; each of three to and from the two others.
assert one["network_bytes"] == 2 * 2 * 262144, one
assert abs(all["network_bytes"] - 2 * 2 / 3 * 262144) < 1, all' "$scratch/p.json"
check "servers of their own, pulls in 16 bits" run -- "${small[@]}" --servers 1,2 --dedicated --pull bf16
check "listed rows, without waiting" run -- "${small[@]}" --listed 10 --staleness async
expect "too many servers" 2 "more than there are ranks" run -- "${small[@]}" --servers 4
expect "nobody works" 2 "one must work" run -- "${small[@]}" --servers 3 --dedicated
expect "more rows than there are" 2 "more rows than the table has" "${small[@]}" --listed 1025
expect "no such type" 2 "'f8' is none of f32, f16, bf16" "${small[@]}" --pull f8
expect "unknown option" 2 "unknown option" "$tool" --speed 11
check "help" "$tool" --help
finish
