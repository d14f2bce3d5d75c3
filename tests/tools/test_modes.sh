#!/usr/bin/env bash
# test_modes.sh BUILD - the trainer's modes: parameter servers, local steps, clients. A run is right if it
# ends as a data-parallel one does where the two must agree, or as one rank does.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
. tests/lib/trainer.sh
steps=160 # for tools/modes.sh, of which skewed_texts is used
. tools/modes.sh

# is NAME NAME EXPRESSION: a condition on the JSON of two runs, a and b.
is() {
    python3 - "$scratch/$1.json" "$scratch/$2.json" "$3" <<'PY'
import json, sys
a, b = (json.load(open(name)) for name in sys.argv[1:3])
for run in a, b:
    print({key: run[key] for key in run if key != "loss"})
sys.exit(not eval(sys.argv[3], {}, {"a": a, "b": b}))
PY
}

short="--steps 12" # where two runs must agree

# ---- parameter servers ----

check "data-parallel" train sum 3 $short
check "ps:bsp" train bsp 3 $short --mode ps:bsp
check "is data-parallel" same final_loss 1e-3 sum bsp
check "in the losses of all steps" is sum bsp \
    "all(abs(x - y) < 1e-3 * x for x, y in zip(a['loss'], b['loss']))"
check "and the bytes of an all-reduce, but for a pull at each end" is sum bsp \
    "0.9 < b['wire_bytes_total'] / a['wire_bytes_total'] < 1.1"
check "ps:ssp:0" train ssp0 3 $short --mode ps:ssp:0
check "is ps:bsp, bit for bit" same checksum 0 bsp ssp0
check "async" train async 3 --mode async
check "the loss falls with async" falls async
check "its pushes are stale, those of ps:bsp are not" is async bsp \
    "a['staleness'][2] > 0 and b['staleness'] == [0, 0, 0]"
# Of one rank no push is stale.
plain="--optimizer sgd --momentum 0"
check "1 rank, SGD" train one 1 $short $plain
# Between two pulls its own steps are those of the server.
check "Downpour that pushes in each step, 1 rank" train downpour 1 $short $plain --mode downpour \
    --push-every 1 --fetch-every 4
check "is plain SGD" is one downpour \
    "all(abs(x - y) < 1e-4 * x for x, y in zip(a['loss'], b['loss']))"
check "also at the end" same final_loss 1e-5 one downpour
check "EASGD" train easgd 3 --mode easgd:0.9
check "the loss falls with EASGD" falls easgd
check "so does that of the server's weights" is easgd easgd "a['final_loss'] < 0.85 * a['loss'][0]"
check "it sends every fourth step, and once more at the end" is async easgd \
    "3 < a['wire_bytes_total'] / b['wire_bytes_total'] < 4"
if full; then
    check "ps:bsp, more ranks than sequences" train few 3 --mode ps:bsp --batch 2
    check "data-parallel with them" train two 3 --batch 2
    check "at the same loss" same final_loss 1e-3 two few
    check "data-parallel, SGD" train sgd 3 --optimizer sgd
    check "ps:bsp, SGD" train bsp 3 --mode ps:bsp --optimizer sgd
    check "is the same" same final_loss 1e-3 sgd bsp
    check "data-parallel, Adagrad" train adagrad 3 --optimizer adagrad
    check "ps:bsp, Adagrad" train bsp 3 --mode ps:bsp --optimizer adagrad
    check "is the same" same final_loss 1e-3 adagrad bsp
    check "async of 1 rank" train async 1 $short $plain --mode async
    check "is plain SGD" same final_loss 1e-5 one async
    for mode in ps:ssp:1 downpour "async --optimizer sgd"; do
        check "$mode" train falling 3 --mode $mode
        check "the loss falls with $mode" falls falling
    done
fi

# ---- local steps ----

check "data-parallel, SGD" train sgd 3 $short --optimizer sgd
check "--local-steps 1, SGD" train local 3 $short --optimizer sgd --local-steps 1
check "is data-parallel" same final_loss 1e-5 sgd local
check "--local-steps 4, SGD" train local4 3 $short --optimizer sgd --local-steps 4
check "is not" is sgd local4 "abs(a['final_loss'] - b['final_loss']) > 1e-4"
check "and sends a quarter" is sgd local4 "3.6 < a['wire_bytes_total'] / b['wire_bytes_total'] < 4.4"
check "local within one host" train host 3 $short --local-steps 7 --sync-within host
check "is data-parallel" same final_loss 1e-3 sum host
# hosts NAME OPTIONS...: 4 ranks on two hosts.
hosts() {
    local name=$1
    shift
    DCOMM_IFACE=lo timeout 120 "$build/dcomm-run" -n 4 --host-id-every 2 -- "$trainer" --steps 40 \
        --batch 10 --seq 32 --dim 32 --sample 0 --json "$scratch/$name.json" "$@"
}
if full; then
    check "data-parallel, in rank order" train fixed 3 --deterministic
    check "post-local from step 20" train post 3 --deterministic --local-steps 4 --post-local 20
    check "is data-parallel before, and not after" is fixed post \
        "a['loss'][:20] == b['loss'][:20] and a['loss'][22:] != b['loss'][22:]"
    check "two hosts, local between them" hosts between --optimizer sgd --local-steps 5 --sync-within host
    check "the loss falls" falls between
    # A host is like one rank with the whole of its part of the batch.
    check "two ranks, local" train two 2 --optimizer sgd --local-steps 5
    check "two hosts are like two ranks" same final_loss 1e-3 two between
    check "weights through a codec" train coded 3 --local-steps 4 --codec qsgd:bits=8 --feedback classic
    check "the loss falls with them" falls coded
fi

# ---- clients ----

# Averages of one client change nothing.
check "1 client, rounds of a step" train every 1 $short --clients 1 --momentum 0 --local-steps 1
check "1 client, rounds of 5 steps" train fifth 2 $short --clients 1 --momentum 0 --local-steps 5
check "are the same" same final_loss 1e-5 every fifth
check "4 clients on 1 rank, 2 in a round" train half 1 $short --clients 4 --fraction 0.5
check "with SCAFFOLD" train scaffold 1 $short --clients 4 --fraction 0.5 --correct scaffold
check "2 clients' losses are averaged" is half one "abs(a['loss'][0] - b['loss'][0]) < 0.1"
check "SCAFFOLD is different" is half scaffold "abs(a['final_loss'] - b['final_loss']) > 1e-4"
check "on 3 ranks" train scaffold3 3 $short --clients 4 --fraction 0.5 --correct scaffold
check "the same as on 1 rank" same final_loss 1e-4 scaffold scaffold3
if full; then
    check "4 clients on 1 rank" train clients 1 --clients 4
    check "the loss falls" falls clients
    check "on 3 ranks" train clients3 3 --clients 4
    check "are the same" same final_loss 1e-3 clients clients3
    check "SCAFFOLD" train scaffold3 3 --clients 4 --correct scaffold
    check "sends twice as much" is clients3 scaffold3 \
        "1.9 < b['wire_bytes_total'] / a['wire_bytes_total'] < 2.1"
    # A round's first step begins at the common weights, which FedProx pulls to: it changes later ones.
    check "FedProx" train prox 1 --clients 4 --prox 1
    check "changes steps after a round's first two" is clients prox \
        "a['loss'][:2] == b['loss'][:2] and a['loss'][2:4] != b['loss'][2:4]"
    check "FedProx that holds on to the common weights" train held 1 --clients 4 --prox 3 --momentum 0
    check "trains slower" is clients held "b['final_loss'] > a['final_loss']"
fi
# Texts in four alphabets, each a client's: the clients drift apart.
skewed_texts "$scratch/texts"
skewed() {
    train "$@" --text "$scratch/texts" --steps 160 --batch 8 --dim 16 --layers 1 --clients 4 \
        --local-steps 40 --lr 0.5 --momentum 0 --warmup 0
}
for seed in 1 $(full && echo 2 3 4 5); do
    check "FedAvg on skewed texts, seed $seed" skewed average 2 --seed "$seed"
    check "SCAFFOLD on skewed texts, seed $seed" skewed scaffold 2 --seed "$seed" --correct scaffold
    check "SCAFFOLD beats FedAvg, seed $seed" is average scaffold "b['final_loss'] < 0.99 * a['final_loss']"
done

# ---- what does not go together ----

expect "no such mode" 2 "not a value of this option" "$trainer" --mode ps
expect "a server and checkpoints" 2 "for data-parallel training" "$trainer" --mode async --checkpoint /tmp
expect "a server and buckets" 2 "for data-parallel training" "$trainer" --mode ps:bsp --buckets 1
expect "a server and a codec" 2 "of an all-reduce" "$trainer" --mode ps:bsp --codec qsgd:bits=8
expect "a server and LARS" 2 "has --optimizer adam, sgd and adagrad" "$trainer" --mode async --optimizer lars
expect "local steps of a server" 2 "no --mode but easgd" "$trainer" --mode async --local-steps 4
expect "clients of a server" 2 "does not go with --mode" "$trainer" --mode async --clients 4
expect "Adam of clients" 2 "goes with --optimizer sgd" "$trainer" --clients 4 --optimizer adam
expect "more clients than sequences" 2 "at least the number of clients" "$trainer" --clients 40
expect "post-local without local" 2 "are for --local-steps" "$trainer" --post-local 4
expect "SCAFFOLD without clients" 2 "are for --clients" "$trainer" --correct scaffold
expect "momentum 1-bit and local" 2 "their own momentum" "$trainer" --local-steps 4 --optimizer 1bit-adam
finish
