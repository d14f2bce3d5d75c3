# modes.sh - sourced: the trainer's modes, a name and options for each. Needs $steps, of the training, and
# $texts, a directory that skewed_texts has filled. Losses on these texts compare with each other alone.

# skewed_texts DIR: writes one text in four alphabets, so that the clients that have a part of it drift apart.
skewed_texts() {
    local licence=/usr/share/common-licenses/GPL-3
    mkdir -p "$1"
    head -c 30000 $licence | tr A-Z a-z >"$1/lower"
    head -c 30000 $licence | tr a-z N-ZA-M >"$1/upper"
    head -c 10000 $licence | od -An -tx1 | head -c 30000 >"$1/hex"
    head -c 30000 $licence | tr a-zA-Z '!-~' >"$1/signs"
}

skewed="--text ${texts:-texts} --seq 32 --dim 32 --batch 16 --optimizer sgd --momentum 0 --lr 0.5"
modes=(
    "data-parallel|"
    "data-parallel, SGD|--optimizer sgd"
    "ps:bsp|--mode ps:bsp"
    "ps:ssp:1|--mode ps:ssp:1"
    "ps:ssp:4|--mode ps:ssp:4"
    "async|--mode async"
    "async, SGD|--mode async --optimizer sgd"
    "downpour|--mode downpour"
    "easgd:0.9|--mode easgd:0.9"
    "local steps 4|--local-steps 4"
    "local steps 16|--local-steps 16"
    "local steps 4, SGD|--local-steps 4 --optimizer sgd"
    "post-local, 4 from half|--local-steps 4 --post-local $(((steps + 1) / 2))"
    "FedAvg, 8 clients|--clients 8 --local-steps 8"
    "FedAvg, 8 clients, half a round|--clients 8 --local-steps 8 --fraction 0.5"
    "skewed, data-parallel|$skewed"
    "skewed, FedAvg|$skewed --clients 4 --local-steps 40"
    "skewed, FedProx|$skewed --clients 4 --local-steps 40 --prox 0.01"
    "skewed, SCAFFOLD|$skewed --clients 4 --local-steps 40 --correct scaffold"
)
