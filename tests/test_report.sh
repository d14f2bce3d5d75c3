#!/usr/bin/env bash
# test_report.sh BUILD - tools/report.py: its tables, and a page that needs nothing from elsewhere.
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
if [ ! -x "$build/dcomm-perf" ] || [ ! -x "$build/examples/trainer" ]; then
    skip "the report" "dcomm-perf or the trainer is not built"
    finish
fi
python=python3
python3 -c 'import matplotlib' 2>/dev/null || python=/usr/bin/python3
train=$scratch/train.json perf=$scratch/perf.json page=$scratch/report.html
coded=$scratch/coded.json
report=("$python" tools/report.py --perf "$perf" --html "$page" "exact=$train" "top-k=$coded")

# page PATTERN COUNT: so many lines of the page match.
page() {
    local found
    found=$(grep -cE -e "$1" "$page")
    echo "$found lines match $1"
    [ "$found" -eq "$2" ]
}

check "a training run" "$build/dcomm-run" -n 2 -- "$build/examples/trainer" --steps 5 --batch 4 \
    --seq 16 --dim 16 --sample 0 --json "$train"
check "a measurement" "$build/dcomm-run" -n 2 -- "$build/dcomm-perf" allreduce -b 4 -e 1K -f 16 \
    --algo all,auto -n 5 --json "$perf"
check "one through a codec" "$build/dcomm-run" -n 2 -- "$build/examples/trainer" --steps 5 --batch 4 \
    --seq 16 --dim 16 --sample 0 --json "$coded" --codec topk:k=0.01 --feedback classic
expect "a row for it" 0 "^top-k .* [0-9.]+x " "${report[@]}"
expect "a row for the training run" 0 "^exact .* [0-9]+\.[0-9]{4} .* MB" "${report[@]}"
expect "a row for each size" 0 "^1 KB .* (µs|ms)$" "${report[@]}"
expect "the fastest at each size" 0 "^  [a-z_]+: 4 B" "${report[@]}"
if "$python" -c 'import matplotlib' 2>/dev/null; then
    check "two plots in the page" page "<svg" 2
else
    check "without matplotlib, a sentence in their place" page "Python has no matplotlib" 1
fi
expect "a note beside the times" 0 "^they are too long$" "${report[@]}" --note "they are too long"
check "in the page as well" page "<strong>they are too long</strong>" 1
check "nothing is loaded from elsewhere" page "(src|href)=\"(https?:|//)" 0
finish
