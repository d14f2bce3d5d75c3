#!/usr/bin/env bash
# test_compare.sh BUILD - the tools that compare dcomm with other libraries: one tiny round of each.
# What the numbers are is not tested here; that they are right results, and told in full, is.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=$(cd "${1:-build}" && pwd)
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
if [ ! -x "$build/dcomm-perf" ]; then
    skip "comparisons" "dcomm-perf is not built"
    finish
fi
tiny=(timeout 300 bench/peers/compare.py --build "$build" --rounds 1 --iterations 3 --warmup 1 --min 4K
    --max 64K --factor 16 --rotate 1M)

# rows FILE EXPRESSION: what a report says of its tables.
rows() {
    python3 - "$@" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
assert report["schema"] == 1 and report["tool"] == "compare-peers"
tables = report["tables"]
results = [row for table in tables for row in table["results"]]
assert results and all(row["time_us_med"] > 0 for row in results), "no times"
assert all("ratio" in row for row in results if row["library"] != "dcomm"), "no ratios"
assert eval(sys.argv[2]), sys.argv[2]
PY
}

have=none
for peer in openmpi mpich gloo; do
    # One library is enough for the tool; with --full each is run.
    if [ $have != none ] && ! full; then
        break
    elif bench/peers/build.sh $peer "$build" >"$out" 2>&1; then
        expect "$peer beside dcomm" 0 "^ +65536 .* [0-9.]+\.\.[0-9.]+" "${tiny[@]}" --peers $peer \
            --ops allreduce,alltoall --json "$scratch/$peer.json"
        check "$peer: the report" rows "$scratch/$peer.json" \
            'len(results) == 8 and {t["op"] for t in tables} == {"allreduce", "alltoall"}'
        [ $have != none ] || have=$peer
    else
        skip "$peer beside dcomm" "$(head -n 1 "$out")"
    fi
done
expect "what no library can beat, and a library's loops alone" 0 "^ +65536 .* [0-9.]+\.\.[0-9.]+" "${tiny[@]}" \
    --peers limit,bare --max 1M --json "$scratch/yardsticks.json"
check "yardsticks: the report" rows "$scratch/yardsticks.json" \
    'len(results) == 9 and {row["library"] for row in results} == {"dcomm", "limit", "bare"}'
expect "auto beside the best forced algorithm" 0 "best forced" "${tiny[@]}" --peers none --forced all \
    -n 3 --json "$scratch/forced.json"
check "forced: the report" rows "$scratch/forced.json" \
    'sum(row.get("best_forced", False) for row in results) == 2 and len(results) > 8'
if [ $have != none ]; then
    expect "memory on huge pages, four ranks that yield" 0 "huge memory \(peers: huge\)" "${tiny[@]}" --peers $have \
        -n 4 --mem huge --json "$scratch/huge.json"
    check "huge: the report" rows "$scratch/huge.json" \
        'all(row["mem"] == "huge" and row["nranks"] == 4 for row in results)'
    expect "--check" 1 "^check: [0-9]+ of 2 times above 1e-09" "${tiny[@]}" --peers $have --check 1e-9
fi
python=python3
python3 -c 'import matplotlib' 2>/dev/null || python=/usr/bin/python3
check "tables and plots" "$python" tools/performance.py "$scratch" "$scratch/docs" forced
expect "a table has a row for each size" 0 "^\\| 65,536 \\| [a-z_]+ \\| " cat "$scratch/docs/results/forced.md"
expect "the targets" 0 "6 auto, of the best forced algorithm: ≤ 1.15 wanted, . of 2 so" \
    "$python" tools/performance.py --targets "$scratch"
expect "nothing to compare with" 3 "nothing to compare with" "${tiny[@]}" --peers none
expect "no such peer" 2 "--peers" "${tiny[@]}" --peers nosuch
expect "no such operation" 2 "--ops" "${tiny[@]}" --ops nosuch

# ---- across emulated hosts ----
bench/cluster.sh --on 0 -- true >"$out" 2>&1
status=$?
if [ $status -eq 77 ] || ! command -v ucx_perftest >/dev/null; then
    skip "peers across hosts" "no namespaces here, or no ucx_perftest (package ucx-utils)"
    finish
fi
for order in $(full && echo block) cyclic; do
    expect "across hosts, $order" 0 "^ +65536 " "${tiny[@]}" --hosts 2 --order $order --rate 200mbit \
        --peers $have --forced ring --json "$scratch/$order.json"
    check "across hosts, $order: the report" rows "$scratch/$order.json" \
        'all(row["time_per_limit"] > 0 for row in results) and tables[0]["cluster"]["hosts"] == 2'
done
expect "compressed beside exact" 0 "^\\| bf16 \\| coded_[a-z_]+ \\| +[0-9.]+ \\| [0-9.]+ \\|" \
    tools/compression.py --build "$build" --rounds 1 --iterations 2 --bytes 256K --exact ring bf16
for peer in $(full && echo openmpi mpich gloo || echo $have); do
    bench/peers/build.sh $peer "$build" >"$out" 2>&1 || continue
    expect "$peer across hosts" 0 "^allreduce +4096 " bench/cluster.sh --build "$build" --peer $peer \
        --timeout 60 -- peer-perf allreduce -b 4096 -e 4096 -n 3 -w 1
done
finish
