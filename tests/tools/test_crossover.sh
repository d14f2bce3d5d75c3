#!/usr/bin/env bash
# test_crossover.sh BUILD - dcomm-crossover: closed forms, measured and predicted times, files, exit
# codes.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
tool=$build/dcomm-crossover
if [ ! -x "$tool" ]; then
    skip "dcomm-crossover" "not built"
    finish
fi

# json FILE CONDITION: python, with the document as d.
json() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert d["schema"] == 1 and d["tool"] == "dcomm-crossover"
assert eval(sys.argv[2]), d' "$1" "$2"
}
textbook="alpha_us=10,beta_ns_per_B=0.02,gamma_ns_per_B=0"

expect "256 ranks, 10 us, 50 GB/s: 17.6 MB" 0 "^ binomial +ring +- +17.6 MB" \
    "$tool" --model $textbook -n 256 -b 1M -e 64M --algo ring,binomial
expect "the closed forms" 0 "closed form of binomial: at most 0.[0-9]+% off" \
    "$tool" --model $textbook -n 256 -b 1M -e 64M --algo ring,binomial
expect "8 ranks, 1 us, 600 GB/s: 1.13 MB" 0 "^ binomial +ring +- +1.13 MB" \
    "$tool" --model alpha_us=1,beta_ns_per_B=0.00166666667 -n 8 -b 64K -e 16M --algo ring,binomial
check "all of alltoall, JSON and SVG" "$tool" alltoall --model $textbook -n 12 -b 1K -e 1M -f 4 \
    --json "$scratch/m.json" --svg "$scratch/m.svg"
check "JSON" json "$scratch/m.json" \
    'd["model_alone"] and all(r["time_us_predicted"] > 0 for r in d["results"])'
check "SVG: no two labels at one place, as wide as the screen at most" python3 -c '
import sys, xml.dom.minidom as m
d = m.parse(sys.argv[1])
at = sorted((t.getAttribute("x"), float(t.getAttribute("y"))) for t in d.getElementsByTagName("text"))
assert len(at) > 8 and all(a[0] != b[0] or b[1] - a[1] > 12 for a, b in zip(at, at[1:])), at
assert d.documentElement.getAttribute("viewBox") and "max-width" in d.documentElement.getAttribute("style")
' "$scratch/m.svg"

check "measured" timeout 120 "$build/dcomm-run" -n 2 -- "$tool" -b 4K -e 256K -f 4 -i 5 \
    --algo ring,one_shot,halving_doubling --json "$scratch/p.json" --save "$scratch/tuning"
check "measured: JSON" json "$scratch/p.json" \
    'all(r["time_us_measured"] > 0 and r["time_us_predicted"] > 0 for r in d["results"])'
check "measured: a fit" json "$scratch/p.json" 'd["fit"]["residual_relative"] > 0'
expect "the saved numbers, by the model" 0 "cheapest" \
    "$tool" --model "$scratch/tuning" -n 4 -b 1K -e 16K

expect "--help" 0 "^usage: dcomm-crossover" "$tool" --help
expect "unknown OP" 2 "not an OP: .allreduced. is none of allreduce, " "$tool" allreduced
expect "--model without -n" 2 "wants -n" "$tool" --model $textbook
expect "bad model" 2 "not alpha_us" "$tool" --model alpha=1 -n 4
expect "negative alpha" 2 "alpha is -1" "$tool" --model alpha_us=-1 -n 4
expect "no such file" 2 "cannot read" "$tool" --model /nonexistent -n 4
expect "unknown algorithm" 2 "--algo: .no_such. is none of hier, " "$tool" --model $textbook -n 4 --algo ring,no_such
expect "unknown option" 2 "unknown option" "$tool" --nosuch
finish
