#!/usr/bin/env bash
# test_report.sh BUILD - tools/report.py: its tables, and a page that needs nothing from elsewhere.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
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
check "where none is worse, no reason why" page "Why some end above" 0
# other FILE CHANGES...: a run or measurement as FILE, but for what this Python does to d.
other() {
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
exec(sys.argv[2])
json.dump(d, open(sys.argv[3], "w"))' "$1" "$2" "$scratch/other.json"
}
worse='d["final_loss"] *= 1.27; d.update'
for case in '(codec="powersgd:rank=2", feedback="classic", optimizer="adam")|Adam divides by the root' \
    '(codec="topk:k=0.01", feedback="dgc", optimizer="frozen")|5 steps are few' \
    '(codec="topk:k=0.01", feedback="none", optimizer="frozen")|lost for good' \
    '(codec="qsgd:bits=2", feedback="none")|more noise than signal'; do
    check "a run that ends 27% above exact" other "$train" "$worse${case%|*}"
    expect "is given a reason: ${case#*|}" 0 "^  other \(\+27 %\): .*${case#*|}" \
        "$python" tools/report.py "exact=$train" "other=$scratch/other.json"
done
check "its page" "${report[@]}" "other=$scratch/other.json"
check "in the page, with a way to more" page "Why some end above exact.*href=\"[^\"]*docs/codecs.md#training" 1
check "tables scroll in a box" eval '[ "$(grep -o "<div class=scroll><table>" "$page" | wc -l)" = 2 ]'
check "colours for a dark page" page "prefers-color-scheme: dark" 1
python3 - "$perf" "$scratch" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
for name, times, cores in ("busy", 3, 8), ("shared", 3, 1), ("free", 1.5, 8):
    d["hardware"]["cores"] = cores
    for row in d["results"]:
        row["time_us_med"] = times * row["time_us_min"]
    json.dump(d, open(f"{sys.argv[2]}/{name}.json", "w"))
PY
expect "times that vary much are said to" 0 "^This machine was busy while it was measured: in [0-9]+ of" \
    "$python" tools/report.py --perf "$scratch/busy.json"
expect "or of too few cores" 0 "^2 ranks shared 1 cores" "$python" tools/report.py --perf "$scratch/shared.json"
check "others are not" eval '! "$python" tools/report.py --perf "$scratch/free.json" | grep -E "busy|shared"'
expect "a note beside the times" 0 "^they are too long$" "${report[@]}" --note "they are too long"
check "in the page as well" page "<strong>they are too long</strong>" 1
check "nothing is loaded from elsewhere" page "(src|href)=\"(https?:|//)" 0
finish
