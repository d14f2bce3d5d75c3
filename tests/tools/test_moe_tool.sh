#!/usr/bin/env bash
# test_moe_tool.sh BUILD - dcomm-moe: rows, JSON, exit codes.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
tool=$build/dcomm-moe
if [ ! -x "$tool" ]; then
    skip "dcomm-moe" "not built"
    finish
fi
run() {
    timeout 60 "$build/dcomm-run" -n 3 -- "$tool" --tokens 64 --hidden 128 --steps 3 --rotate 0 "$@"
}

check "all skews" run --skew uniform,zipf:1.2,hot,adversarial,hosts:3 --json "$scratch/m.json"
check "JSON" python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert d["schema"] == 1 and d["tool"] == "dcomm-moe" and d["nranks"] == 3 and d["k"] == 2
rows = {r["skew"]: r for r in d["results"]}
assert len(rows) == 5 and all(r["step_us_p50"] > 0 and r["alltoallv_us"] > 0 for r in rows.values())
assert all(r["step_us_p99"] >= r["step_us_p50"] and not r["wrong"] for r in rows.values()), d
assert rows["adversarial"]["imbalance"] == 3 and rows["uniform"]["cv"] < rows["hot"]["cv"], d
assert all(r["drop_rate"] == 0 and r["form"] == "flat" for r in rows.values()), d' "$scratch/m.json"
check "with a capacity" run --skew hot --capacity 1 --json "$scratch/m.json"
check "drops are counted" python3 -c 'import json, sys
assert json.load(open(sys.argv[1]))["results"][0]["drop_rate"] > 0.1' "$scratch/m.json"
check "rerouted, in chunks, registered" run --capacity 1 --reroute --chunks 3 --registered
check "through a codec" run --codec fp8 --skew uniform
check "the exchange alone" run --exchange --mem registered --skew zipf:1
check "by an algorithm of choice" run --algo bruck --skew zipf:1
expect "no such algorithm" 2 "--algo: .ring. is none of hier, " run --algo ring --skew zipf:1
expect "no hierarchy on one host" 3 "no hierarchy" run --form hier
expect "no such skew" 2 "no such skew" run --skew steep
expect "no such value" 2 "--k 9: it must be a whole number from 1 to 8" "$tool" --k 9
expect "unknown option" 2 "unknown option" "$tool" --speed 11
check "help" "$tool" --help
finish
