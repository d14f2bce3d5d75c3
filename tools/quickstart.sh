#!/usr/bin/env bash
# quickstart.sh - from a fresh machine to the main job: installs what is missing, builds, trains a
# small model on real text with local ranks, once exactly and once with each of several codecs,
# measures the all-reduce algorithms, writes a report.
#
#   tools/quickstart.sh [--ranks N] [--steps N] [--text PATH]
#
# --ranks (default 4), --steps of training (default 250), --text file or directory to train on
# (default: the licence texts that Debian carries). The report is build/report.html.
set -eu
cd "$(dirname "$0")/.."

ranks=4
steps=250
text=()
while [ $# -gt 0 ]; do
    case $1 in
    --ranks | --steps | --text)
        [ $# -gt 1 ] || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }
        case $1 in
        --ranks) ranks=$2 ;;
        --steps) steps=$2 ;;
        --text) text=(--text "$2") ;;
        esac
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done

. tools/configurations.sh

say() {
    printf '\n== %s\n' "$*"
}

say "installing what is missing"
tools/setup.sh --build-only

say "building"
[ -f build/build.ninja ] || meson setup build --buildtype=release -Dtests=false >build-setup.log ||
    { cat build-setup.log; exit 1; }
rm -f build-setup.log
ninja -C build dcomm-run dcomm-perf examples/trainer

# On one machine nothing takes a minute: what does is stuck, and should say so soon.
export DCOMM_TIMEOUT=${DCOMM_TIMEOUT:-60}

out=build/quickstart
rm -rf "$out"
mkdir -p "$out"
trained=()
for configuration in "${configurations[@]}"; do
    name=${configuration%%|*}
    file=$out/train-${name//[^A-Za-z0-9]/_}.json
    read -ra options <<<"${configuration#*|}"
    say "training with $ranks ranks: $name"
    build/dcomm-run -n "$ranks" -- build/examples/trainer --steps "$steps" "${text[@]}" \
        --json "$file" "${options[@]}"
    trained+=("$name=$file")
done

say "measuring all-reduce with $ranks ranks (half a minute)"
build/dcomm-run -n "$ranks" -- build/dcomm-perf allreduce -b 4 -e 8M -f 8 --algo all,auto \
    --json "$out/allreduce.json" >"$out/allreduce.txt" || { cat "$out/allreduce.txt"; exit 1; }

# The distribution's Python has the plotting library, which another one in PATH may lack.
python=python3
python3 -c 'import matplotlib' 2>/dev/null || [ ! -x /usr/bin/python3 ] || python=/usr/bin/python3
say "results"
"$python" tools/report.py --perf "$out/allreduce.json" --html build/report.html "${trained[@]}"
