#!/usr/bin/env bash
# test_rules.sh BUILD - the trainer's rules of learning: optimizers, rates, 16-bit gradients, balance, the
# noise scale, and hashes of the weights.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
. tests/lib/trainer.sh

# ---- optimizers ----

# obeys RULE: the second of two steps does what the rule's formula says. Checkpoints have the weights and the
# optimizer's state around it, and the gradients are in a file.
obeys() {
    python3 - "$scratch" "$1" <<'PY'
import array, math, os, struct, sys
where, rule = sys.argv[1:]
momentum, keep, batch, dim, vocab = 0.7, 0.99, 10, 16, 16
rate = 0.02 * (0.55 + 0.45 * math.cos(math.pi / 2))

def floats(data, n):
    return array.array("f", data[:4 * n]), data[4 * n:]

def state(step):
    data = open(f"{where}/{rule}/step-{step:08}/rank-0", "rb").read()
    count, = struct.unpack_from("=Q", data, 32)
    weights, data = floats(data[48:], count)
    variance, data = floats(data, count)
    return weights, variance, floats(data[8 * step:], count)[0]

norm = lambda xs: math.sqrt(sum(x * x for x in xs))
g = [x / batch for x in array.array("f", open(f"{where}/rank0-step0.npy", "rb").read()[128:])]
(w, v, m), (after, _, _) = state(1), state(2)
layer = [dim, 3 * dim * dim, dim * dim, dim, 4 * dim * dim, 4 * dim * dim]
sizes = [vocab * dim, *layer, dim, dim * vocab]
worst = first = 0
for size in sizes:
    at = range(first, first + size)
    first += size
    if rule == "sgd":
        move = [rate * (momentum * m[i] + g[i]) for i in at]
    elif rule == "adagrad":
        move = [rate * g[i] / (math.sqrt(v[i] + g[i]**2) + 1e-8) for i in at]
    elif rule == "lars":
        trust = norm(w[i] for i in at) / norm(g[i] for i in at)
        move = [momentum * m[i] + rate * trust * g[i] for i in at]
    else:
        u = [(momentum * m[i] + (1 - momentum) * g[i]) / (1 - momentum**2) /
             (math.sqrt((keep * v[i] + (1 - keep) * g[i]**2) / (1 - keep**2)) + 1e-6) for i in at]
        move = [rate * norm(w[i] for i in at) / norm(u) * x for x in u]
    worst = max(worst, norm(w[i] - after[i] - x for i, x in zip(at, move)) / norm(move))
assert first == len(w) == len(g)
print(worst)
sys.exit(not worst < 2e-3)  # weights near 1 are rounded to 6e-8 of them
PY
}
# 16 letters: with them and this width, no tensor needs padding.
python3 -c "print(''.join(chr(97 + i**3 % 251 % 16) for i in range(4000)), end='')" >"$scratch/letters.txt"
for rule in sgd adagrad lars lamb; do
    check "two steps of $rule" train two 1 --optimizer $rule --lr 0.02 --warmup 0 --steps 2 --dim 16 \
        --layers 1 --text "$scratch/letters.txt" --every 1 --checkpoint "$scratch/$rule" --dump "$scratch"
    check "the second one does what its formula says" obeys $rule
done
# N ranks do what one rank does.
for rule in "sgd --steps 20" "lamb --lr 0.1 --steps 20" $(full && echo lars adagrad); do
    check "$rule, 1 rank" train one 1 --optimizer $rule
    check "the loss falls with $rule" falls one
    check "$rule, 3 ranks" train three 3 --optimizer $rule
    check "$rule on 3 ranks ends at the loss of one" same final_loss 1e-3 one three
done
frozen="--exact-steps 10 --steps 20"
check "frozen through signs" train frozen 3 --optimizer frozen $frozen --codec sign --feedback classic
check "1-bit Adam" train onebit 3 --optimizer 1bit-adam $frozen
check "1-bit Adam is that, bit for bit" same checksum 0 frozen onebit

# ---- the rate ----

rate="--optimizer sgd --steps 20 --lr"
check "a rate of 0.2" train plain 2 $rate 0.2
check "half of it, times 2 ranks" train scaled 2 $rate 0.1 --scale-lr linear
check "is the same, bit for bit" same checksum 0 plain scaled
if full; then
    check "half of it, times the root of 4 ranks" train root 4 $rate 0.1 --scale-lr sqrt
    check "is the same" same final_loss 1e-3 plain root
    check "a warm-up as it is by default" train warm 2 $rate 0.2 --warmup 20
    check "is the same, bit for bit" same checksum 0 plain warm
fi
# The first step's rate is 1 / N of the highest one, so without a warm-up a rate of 1 / N does the same.
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
for dtype in f16 $(full && echo bf16); do
    check "gradients in $dtype" train narrow 3 --grad-dtype $dtype --deterministic
    check "end near the loss of f32" same final_loss 2e-3 f32 narrow
    check "with half the bytes" half f32 narrow
done
check "what is finite in f32 and not in f16 is found" says "of rank 0 is " over 2 --grad-dtype f16 \
    --loss-scale 16777216 --steps 3
check "more ranks than sequences, in f16" train many 3 --grad-dtype f16 --batch 2 --steps 5
if full; then
    check "bf16 through a codec" train coded 3 --grad-dtype bf16 --codec qsgd:bits=8 --feedback classic
    check "ends near the loss of f32" same final_loss 0.03 f32 coded
fi
expect "no such dtype" 2 "not a value of this option" "$trainer" --grad-dtype f8

# ---- batches in proportion to speed ----

# parts NAME TEST: what Python says of the list `parts` in a run's JSON.
parts() {
    python3 -c "
import json, sys
parts = json.load(open(sys.argv[1]))['parts']
print(parts)
sys.exit(not ($2))" "$scratch/$1.json"
}
check "rank 1 takes 8 times as long" train slow 3 --balance --slow 1:8 --buckets 64
check "it has the smallest part, but one" parts slow \
    "sum(parts) == 10 and 1 <= parts[1] < min(parts[0], parts[2])"
check "the loss is that of equal parts" same final_loss 1e-3 f32 slow
check "equal parts without a balance" parts f32 "parts is None"
expect "more ranks than sequences" 2 "a batch of a sequence a rank" train few 3 --balance --batch 2
if full; then
    survives() { # dcomm-run reports the death
        timeout 120 "$build/dcomm-run" -n 3 --keep-going -- "$trainer" --steps 40 --batch 10 --seq 32 \
            --dim 32 --sample 0 --json "$scratch/$1.json" "${@:2}" || [ -s "$scratch/$1.json" ]
    }
    check "a rank dies" survives dead --elastic --balance --slow 0:8 --die 25:1
    check "those that are left are balanced" parts dead "len(parts) == 2 and parts[0] < parts[1]"
    check "and end at the same loss" same final_loss 1e-3 f32 dead
fi

# ---- the noise scale ----

# The ranks' gradients before they were summed are in files. Unbiased estimates from them, averaged with a
# weight of 0.95 a step, must give the same noise scale.
noise() {
    python3 - "$scratch" "$1" <<'PY'
import array, json, sys
where, name, ranks, batch, keep = sys.argv[1], sys.argv[2], 3, 10, 0.95
trace = square = 0
for step in range(12):
    parts, inverse = [], 0
    for rank in range(ranks):
        data = open(f"{where}/rank{rank}-step{step}.npy", "rb").read()[128:]
        count = batch * (rank + 1) // ranks - batch * rank // ranks
        parts.append((count, array.array("f", data)))
    small = sum(sum(x * x for x in part) / count**2 for count, part in parts) / ranks
    inverse = sum(1 / count for count, part in parts) / ranks  # 1 / samples of a small batch
    large = sum(sum(xs)**2 for xs in zip(*(part for count, part in parts))) / batch**2
    trace = keep * trace + (1 - keep) * (small - large) / (inverse - 1 / batch)
    square = keep * square + (1 - keep) * (batch * large - small / inverse) / (batch - 1 / inverse)
want, got = trace / square, json.load(open(f"{where}/{name}.json"))["noise_scale"]
print(want, got)
sys.exit(not (want > 0.1 and abs(got - want) < 1e-3 * want))
PY
}
small="--steps 12 --dim 16 --layers 1"
check "noise scale, gradients as files" train noise 3 --noise-scale $small --dump "$scratch" --dump-steps 12
check "it is that of the files" noise noise
check "in buckets and f16" train scaled 3 --noise-scale $small --grad-dtype f16
check "it is nearly the same" same noise_scale 0.01 noise scaled
# Sequences that are all alike have no noise. The second letter is in held-out text alone.
python3 -c "print(('a' * 399 + 'b') * 10, end='')" >"$scratch/alike.txt"
check "sequences that are alike" train alike 3 --noise-scale --steps 8 --text "$scratch/alike.txt"
check "have no noise" python3 -c "
import json, sys
scale = json.load(open(sys.argv[1]))['noise_scale']
print(scale)
sys.exit(not abs(scale) < 1e-4)" "$scratch/alike.json"
check "one rank has no noise scale" says "not known, because no two ranks" alone 1 --noise-scale --steps 2
expect "no sums, no noise scale" 2 "does not go with frozen" "$trainer" --noise-scale --optimizer 1bit-adam

# ---- hashes of the weights ----

# hashes NAME: the run prints a hash every 5 steps, and the last one is that of the end.
hashes() {
    train "$1" 3 --hash-every 5 --steps 10 --deterministic >"$scratch/$1" || return 1
    cat "$scratch/$1"
    [ "$(grep -c '^step .* weights' "$scratch/$1")" = 2 ] &&
        grep "weights $(sed -n 's/^step    10  weights //p' "$scratch/$1") equal" "$scratch/$1"
}
check "hashes, the last one is that of the end" hashes first
if full; then
    check "again" hashes second
    check "two runs have the same hashes" cmp <(grep '^step .* weights' "$scratch/first") \
        <(grep '^step .* weights' "$scratch/second")
fi
expect "a weight of rank 1 changes" 1 \
    "step 15: the weights of rank 1 differ from those of rank 0, first in layer1.qkv" \
    train wrong 3 --hash-every 5 --spoil-weight 12:1
expect "a weight of rank 0 changes" 1 "the weights of rank 0 differ from those of rank 1" \
    train wrong 3 --hash-every 5 --spoil-weight 2:0
finish
