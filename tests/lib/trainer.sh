# trainer.sh - what the script tests of the trainer share: short runs, and how their results are compared.
# It needs $build, and ends the script if the trainer is not built.
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
trainer=$build/examples/trainer
if [ ! -x "$trainer" ]; then
    skip "the trainer" "not built"
    finish
fi

# train NAME RANKS OPTIONS...: a short run; its JSON goes to $scratch/NAME.json.
train() {
    local name=$1 ranks=$2
    shift 2
    timeout 120 "$build/dcomm-run" -n "$ranks" -- "$trainer" --steps 40 --batch 10 --seq 32 \
        --dim 32 --sample 0 --json "$scratch/$name.json" "$@"
}

# same KEY RELATIVE NAME NAME: the number or text KEY of two runs; RELATIVE 0 means exactly equal.
same() {
    python3 - "$1" "$2" "$scratch/$3.json" "$scratch/$4.json" <<'PY'
import json, sys
key, relative = sys.argv[1], float(sys.argv[2])
a, b = (json.load(open(name))[key] for name in sys.argv[3:])
print(key, a, b)
sys.exit(not (a == b if relative == 0 else abs(a - b) <= relative * abs(a)))
PY
}

# falls NAME: training has got somewhere.
falls() {
    python3 - "$scratch/$1.json" <<'PY'
import json, sys
loss = json.load(open(sys.argv[1]))["loss"]
print(loss)
sys.exit(not loss[-1] < 0.85 * loss[0])
PY
}

# says WORDS NAME RANKS OPTIONS...: a run that prints the words.
says() {
    local words=$1
    shift
    train "$@" >"$scratch/said" && grep -F "$words" "$scratch/said"
}
