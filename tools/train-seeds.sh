#!/usr/bin/env bash
# train-seeds.sh - trains with each of the quickstart's configurations and several seeds; prints the
# mean and the spread of the final losses. Needs build/ as the quickstart leaves it.
#
#   tools/train-seeds.sh [--modes] [--ranks N] [--steps N] [--seeds N] [NAME...]
#
# --modes: the trainer's modes in place of the configurations, and what they cost. --ranks (default
# 4), --steps (default 250), --seeds (default 5); NAME: only configurations whose name begins so. The
# first is what the others are compared with; it is always run.
set -eu
cd "$(dirname "$0")/.."

ranks=4
steps=250
seeds=5
names=()
table=
while [ $# -gt 0 ]; do
    case $1 in
    --ranks | --steps | --seeds)
        [ $# -gt 1 ] || { echo "train-seeds.sh: $1 needs a value" >&2; exit 2; }
        case $1 in
        --ranks) ranks=$2 ;;
        --steps) steps=$2 ;;
        --seeds) seeds=$2 ;;
        esac
        shift
        ;;
    --modes) table=--modes ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "train-seeds.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    *) names+=("$1") ;;
    esac
    shift
done
out=build/seeds
rm -rf "$out"
mkdir -p "$out"
if [ -n "$table" ]; then
    texts=$out/texts
    . tools/modes.sh
    skewed_texts "$texts"
    configurations=("${modes[@]}")
else
    . tools/configurations.sh
fi
export DCOMM_TIMEOUT=${DCOMM_TIMEOUT:-60}

wanted=()
for i in "${!configurations[@]}"; do
    chosen=$([ "$i" -eq 0 ] || [ ${#names[@]} -eq 0 ] && echo yes || true)
    for name in ${names[@]+"${names[@]}"}; do
        case ${configurations[i]%%|*} in "$name"*) chosen=yes ;; esac
    done
    [ -z "$chosen" ] || wanted+=("${configurations[i]}")
done
# Seeds outside: who stops it early has as many of each.
for seed in $(seq 1 "$seeds"); do
    for i in "${!wanted[@]}"; do
        read -ra options <<<"${wanted[i]#*|}"
        build/dcomm-run -n "$ranks" -- build/examples/trainer --steps "$steps" --seed "$seed" \
            --sample 0 --log-every 1000000 --json "$out/$i-$seed.json" "${options[@]}" >"$out/log" ||
            { cat "$out/log"; exit 1; }
        echo "${wanted[i]%%|*}" >"$out/$i.name"
        echo "seed $seed, ${wanted[i]%%|*}: $(grep -o 'final loss [0-9.]*' "$out/log")" >&2
    done
done
python3 tools/seeds.py $table "$out"
