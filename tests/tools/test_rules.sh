#!/usr/bin/env bash
# test_rules.sh BUILD - the trainer's rules of learning: optimizers, rates, 16-bit gradients, balance, the
# noise scale, and hashes of the weights.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
. tests/lib/trainer.sh

# ---- optimizers: N ranks do what one rank does ----

for rule in sgd "lamb --lr 0.05" $(full && echo lars adagrad); do
    check "$rule, 1 rank" train one 1 --optimizer $rule
    check "the loss falls with $rule" falls one
    check "$rule, 3 ranks" train three 3 --optimizer $rule
    check "$rule on 3 ranks ends at the loss of one" same final_loss 1e-3 one three
done
signs="--codec sign --feedback classic"
check "frozen through signs" train frozen 3 --optimizer frozen --exact-steps 15 $signs
check "1-bit Adam" train onebit 3 --optimizer 1bit-adam --exact-steps 15
check "1-bit Adam is that, bit for bit" same checksum 0 frozen onebit

# ---- the rate ----

check "a rate of 0.2" train plain 2 --optimizer sgd --lr 0.2
check "half of it, times 2 ranks" train scaled 2 --optimizer sgd --lr 0.1 --scale-lr linear
check "is the same, bit for bit" same checksum 0 plain scaled
check "half of it, times the root of 4 ranks" train root 4 --optimizer sgd --lr 0.1 --scale-lr sqrt
check "is the same" same final_loss 1e-3 plain root
check "a warm-up as it is by default" train warm 2 --optimizer sgd --lr 0.2 --warmup 20
check "is the same, bit for bit" same checksum 0 plain warm
# The first step's rate is 1 / N of the highest one, so no warm-up means N times the first step.
check "one step, no warm-up" train cold 1 --optimizer sgd --lr 0.02 --warmup 0 --steps 1
check "one step of a warm-up of 10" train first 1 --optimizer sgd --lr 0.2 --warmup 10 --steps 1
check "is a tenth of the rate" same final_loss 1e-6 cold first
expect "no such scale" 2 "not a value of this option" "$trainer" --scale-lr cubic

# ---- gradients of 16 bits ----

# half NAME NAME: the second run sent half the bytes of the first, but for the losses.
half() {
    python3 - "$scratch/$1.json" "$scratch/$2.json" <<'PY'
import json, sys
full, half = (json.load(open(name))["wire_bytes_total"] for name in sys.argv[1:])
print(full, half)
sys.exit(not 0.495 * full < half < 0.505 * full)
PY
}
check "gradients in f32" train f32 3 --buckets 256 --deterministic
for dtype in bf16 f16; do
    check "gradients in $dtype" train narrow 3 --grad-dtype $dtype --deterministic
    check "end near the loss of f32" same final_loss 2e-3 f32 narrow
    check "with half the bytes" half f32 narrow
done
check "what is finite in f32 and not in f16 is found" says "of rank 0 is " over 2 --grad-dtype f16 \
    --loss-scale 16777216 --steps 12
check "more ranks than sequences, in f16" train many 3 --grad-dtype f16 --batch 2 --steps 5
check "bf16 through a codec" train coded 3 --grad-dtype bf16 --codec qsgd:bits=8 --feedback classic
check "ends near the loss of f32" same final_loss 0.03 f32 coded
expect "no such dtype" 2 "not a value of this option" "$trainer" --grad-dtype f8
finish
