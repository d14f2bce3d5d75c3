#!/usr/bin/env bash
# test_topo.sh BUILD - dcomm-topo: machines from files, ranks bound on them, ranks of a job, the
# choice, JSON by its schema, exit statuses.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
if [ ! -x "$build/dcomm-topo" ]; then
    skip "dcomm-topo" "it is not built"
    finish
fi
topo=$build/dcomm-topo
run=$build/dcomm-run

# schema FILE TEST: it fits docs/dcomm-topo.schema.json, and the Python expression over d is true.
schema() {
    python3 - docs/dcomm-topo.schema.json "$1" "$2" <<'PY'
import json, sys
schema, d = (json.load(open(name)) for name in sys.argv[1:3])
try:
    import jsonschema
    jsonschema.validate(d, schema)
except ImportError:
    print("python3-jsonschema is not installed")
assert eval(sys.argv[3]), d
PY
}

# ---- machines ----
expect "this machine" 0 "^machine: [0-9]+ core" "$topo"
expect "one from a file" 0 "^machine: 16 cores, 32 hardware threads, 64 GiB" \
    "$topo" --xml tests/data/topo/server.xml
expect "its network interface" 0 "^    nic eth1, PCI 0000:80:01.0" \
    "$topo" --xml tests/data/topo/server.xml
expect "its GPU" 0 "^    gpu 0000:80:00.0" "$topo" --xml tests/data/topo/server.xml
expect "one without cores" 0 "thread 3: cpu 3" "$topo" --xml tests/data/topo/plain.xml

# ---- ranks on paper ----
expect "slices" 0 "cache 1: L3, 16 MiB   <- rank 1$" "$topo" --xml tests/data/topo/server.xml -n 4
expect "levels of slices" 0 "^numa: 4 groups: \{0\} \{1\} \{2\} \{3\}$" \
    "$topo" --xml tests/data/topo/server.xml -n 4
expect "two ranks to a package" 0 "^package: 2 groups: \{0 1\} \{2 3\}$" \
    "$topo" --xml tests/data/topo/server.xml -n 4
expect "cores" 0 "core 4: cpu 1-7   <- rank 2$|core 2: cpu 4-5   <- rank 2$" \
    "$topo" --xml tests/data/topo/laptop.xml -n 4 --bind core
expect "one thread of a core" 0 "^ +2 .* yes .* 4$" "$topo" --xml tests/data/topo/laptop.xml -n 4 --bind core
expect "more ranks than threads" 0 "^core: 4 groups: \{0 4 8\} \{1 5 9\} \{2 6\} \{3 7\}$" \
    "$topo" --xml tests/data/topo/laptop.xml -n 10 --bind slice
expect "rings pass core by core" 0 "^ring order: 0 4 8 1 5 9 2 6 3 7$" \
    "$topo" --xml tests/data/topo/laptop.xml -n 10 --bind slice
expect "more ranks than cores are not bound" 0 "^host: 1 group: \{0-9\}$|^host: 1 group: \{0 1 2" \
    "$topo" --xml tests/data/topo/laptop.xml -n 10
expect "unbound ranks are no groups" 0 "^host: 1 group: \{0 1 2\}$" \
    "$topo" --xml tests/data/topo/server.xml -n 3 --bind none
expect "and say so" 0 "^ +2 +0 +- +- +- +- +no " \
    "$topo" --xml tests/data/topo/server.xml -n 3 --bind none

# on_paper BIND: what dcomm-topo says of ranks of this machine is what dcomm-run does.
on_paper() {
    local n
    for n in 1 2 3 5; do
        "$topo" -n $n --bind "$1" --json "$scratch/paper.json" >/dev/null || return 1
        "$run" -n $n --bind "$1" -- sh -c \
            'echo "$RANK $(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status)"' |
            sort -n >"$scratch/real"
        python3 -c 'import json, sys
for r in json.load(open(sys.argv[1]))["ranks"]:
    print(r["rank"], r["cpus"])' "$scratch/paper.json" >"$scratch/paper"
        diff "$scratch/paper" "$scratch/real" || return 1
    done
}
for bind in slice core none; do # auto looks who else uses the machine
    check "dcomm-run --bind $bind does the same" on_paper $bind
done

# ---- ranks of a job ----
expect "ranks of a job" 0 "^host 0 \(" "$run" -n 2 -- "$topo"
expect "connections between them" 0 "^connections between ranks of two hosts: 3$" \
    env DCOMM_CONNECTIONS=3 "$run" -n 2 --host-id-every 1 -- "$topo"
expect "hosts among them" 0 "^host: 2 groups: \{0 1\} \{2 3\}$" \
    "$run" -n 4 --host-id-every 2 -- "$topo"
# by_hand TEST...: four ranks of a job on two servers, numbered round them.
by_hand() {
    "$run" -n 4 -- sh -c 'DCOMM_IFACE=lo DCOMM_HOSTID=h$((RANK % 2)) \
        DCOMM_TOPO_CPUS=$((RANK * 8))-$((RANK * 8 + 3)) exec "$0" "$@"' \
        "$topo" --xml tests/data/topo/server.xml "$@"
}
expect "ranks numbered round the hosts" 0 "^host: 2 groups: \{0 2\} \{1 3\}$" by_hand
expect "rings enter each host once" 0 "^ring order: 0 2 1 3$" by_hand
expect "the merged tree" 0 "^ +rank 3: cpu 24-27$" by_hand
expect "told once that they are not bound" 0 "ranks 0-1 of 2 are not bound" \
    "$run" -n 2 --bind slice -- sh -c 'DCOMM_TOPO_CPUS=0-7 exec "$@"' - "$topo" --xml tests/data/topo/laptop.xml

# ---- the choice ----
expect "the choice on paper" 0 "^all-reduce of 1048576 bytes \(count 262144\) on 4 ranks: [a-z]" \
    "$topo" --xml tests/data/topo/server.xml -n 4 --explain allreduce 1M
# Packages cost: a ring that crosses them is dearer than one that does not.
ring_us() {
    "$topo" --xml tests/data/topo/$1.xml -n 4 --explain allreduce 1M | sed -n 's/^[ *]* ring *\([0-9.]*\) us.*/\1/p'
}
dearer() {
    awk -v a="$(ring_us server)" -v b="$(ring_us laptop)" 'BEGIN { exit !(b > 0 && a > b) }'
}
check "the choice on paper knows the packages" dearer
expect "the choice of a job" 0 "^all-gather of 4096 bytes \(count 512\) on 2 ranks: [a-z]" \
    "$run" -n 2 -- "$topo" --explain all_gather 4K
expect "what else there is" 0 "^[ *] bruck +[0-9.]+ us" \
    "$topo" -n 4 --explain alltoall 64
expect "why not" 0 "^  ring +[0-9.]+ us  [0-9.]+ times the price of " \
    "$topo" -n 8 --explain allreduce 4

expect "what of the topology is left aside" 0 "^. hier +[0-9.]+ us .*no level divides the ranks:" \
    "$topo" --xml tests/data/topo/laptop.xml -n 3 --bind none --explain allreduce 1M

algo_of() {
    "$topo" -n 4 --bind none --explain allreduce 1M --mem "$1" | sed -n 's/^\* *\([a-z_]*\) *\([0-9.]*\) us.*/\1 \2/p'
}
differs() {
    [ -n "$(algo_of cuda)" ] && [ "$(algo_of cuda)" != "$(algo_of host)" ]
}
expect "by which path" 0 "^cuda memory: staged: copied out to pinned memory" \
    "$topo" -n 4 --explain allreduce 1M --mem cuda
expect "the path that is counted on" 0 \
    "^\* staged +[a-z_]+ +[0-9.]+ us \(assumed\)  pairs: 0 direct, 6 staged$" \
    "$topo" -n 4 --explain allreduce 1M --mem cuda
expect "what the other would take" 0 \
    "^  direct +[a-z_]+ +[0-9.]+ us \(assumed\)  pairs: 6 direct, 0 staged; opts.registered$" \
    "$topo" -n 4 --explain allreduce 1M --mem cuda
expect "and UCX" 0 \
    "^  ucx +[a-z_]+ +[0-9.]+ us \(assumed\)  pairs: 0 direct, 6 staged; all ranks share$" \
    "$topo" -n 4 --explain allreduce 1M --mem cuda
expect "and where there are hosts" 0 \
    "^  ucx .* pairs: 0 direct, 2 staged, 4 by UCX; UCX$" \
    "$run" -n 4 --host-id-every 2 -- "$topo" --explain allreduce 1M --mem cuda
expect "prices of devices are assumed" 0 "^[ *] ring +[0-9.]+ us \(assumed\)" \
    "$topo" -n 4 --explain allreduce 1M --mem cuda
expect "memory that peers read" 0 "^cuda-shared memory: direct: read from the peer" \
    "$topo" -n 4 --explain allreduce 1M --mem cuda-shared
expect "and between hosts not" 0 "^cuda-shared memory: mixed: " \
    "$run" -n 4 --host-id-every 2 -- "$topo" --explain allreduce 1M --mem cuda-shared
expect "pairs of a job" 0 "^\* direct .* pairs: 2 direct, 4 staged$" \
    "$run" -n 4 --host-id-every 2 -- "$topo" --explain allreduce 1M --mem cuda-shared
expect "one rank on each host" 0 "^cuda-shared memory: staged: " \
    "$run" -n 2 --host-id-every 1 -- "$topo" --explain allreduce 1M --mem cuda-shared
device_tuning() {
    printf '%s\n' 'device_stage_us = 5' 'device_ucx_us = 3' 'device_copy = 0:4 1048576:5' \
        'device_fold = 0:4 1048576:5' 'device_read = 0:4 1048576:9' \
        'device_reduce = 0:4 1048576:9' >"$scratch/device.tune"
    DCOMM_TUNE_FILE="$scratch/device.tune" "$run" -n 2 -- "$topo" --explain allreduce 1M \
        --mem cuda-shared >"$scratch/tuned" && grep -q '^\* direct .* us  pairs' "$scratch/tuned" &&
        ! grep -q assumed "$scratch/tuned"
}
check "a tuning file brings a device's numbers" device_tuning
check "the choice knows the memory" differs
expect "no such memory" 2 "--mem tape: 'tape' is none of host, " "$topo" -n 4 --explain allreduce 1M --mem tape

# ---- JSON ----
check "JSON of a machine" "$topo" --xml tests/data/topo/server.xml --json "$scratch/machine.json"
check "by the schema" schema "$scratch/machine.json" \
    'd["machine"]["memory_bytes"] == 64 << 30 and "ranks" not in d'
check "JSON of ranks on paper" "$topo" --xml tests/data/topo/server.xml -n 4 --explain broadcast 1G \
    --mem registered --json "$scratch/paper.json"
check "by the schema" schema "$scratch/paper.json" \
    'd["order"] == [0, 1, 2, 3] and d["ranks"][2]["nic"] == "eth1" and d["explain"]["bytes"] == 1 << 30'
check "JSON of paths" "$topo" --xml tests/data/topo/server.xml -n 4 --explain allreduce 1M \
    --mem cuda --json "$scratch/paths.json"
check "by the schema" schema "$scratch/paths.json" \
    '[(p["name"], p["taken"], p["assumed"]) for p in d["explain"]["paths"]] == [("staged", True, True), ("direct", False, True), ("ucx", False, True)] and all(a["assumed"] for a in d["explain"]["algos"])'
check "JSON of a job" "$run" -n 4 --host-id-every 2 -- "$topo" --json "$scratch/job.json"
check "by the schema" schema "$scratch/job.json" \
    'd["machine"] is None and d["connections"] > 0 and d["levels"][0]["groups"] == [[0, 1], [2, 3]]'
expect "JSON and nothing else" 0 '^\{' "$topo" --json -

# ---- exit statuses ----
expect "help" 0 "^usage: dcomm-topo" "$topo" --help
expect "unknown option" 2 "" "$topo" --nosuch
expect "something that is no option" 2 "not an option: x" "$topo" x
expect "no ranks" 2 "-n 0: it must be a whole number from 1 to " "$topo" -n 0
expect "no such binding" 2 "--bind all: 'all' is none of auto, slice, core, none" "$topo" -n 2 --bind all
expect "no such file" 2 "/nosuch.xml is no topology" "$topo" --xml /nosuch.xml
expect "no such operation" 2 "unknown operation: 'allreduced' is none of all-reduce, " "$topo" -n 2 --explain allreduced 4
expect "no bytes" 2 "no number of bytes" "$topo" -n 2 --explain allreduce
expect "bytes that are none" 2 "no number of bytes" "$topo" -n 2 --explain allreduce 4x
expect "nothing to choose for" 2 "needs ranks" "$topo" --explain allreduce 4
expect "no place to write" 2 "cannot write" "$topo" --json /nosuch/file.json
expect "ranks that do not meet" 3 "" env RANK=0 WORLD_SIZE=x MASTER_ADDR=h MASTER_PORT=1 "$topo"
finish
