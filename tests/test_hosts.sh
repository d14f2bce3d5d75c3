#!/usr/bin/env bash
# test_hosts.sh BUILD - two hosts for real: network namespaces joined by a veth, each with processes,
# shared memory and a host name of its own.
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
build=$(cd "${1:-build}" && pwd)
one=dcomm-$$-a two=dcomm-$$-b
export DCOMM_SECRET=0123456789abcdef0123456789abcdef DCOMM_TIMEOUT=30
unset DCOMM_IFACE

clean() {
    ip netns del "$one"
    ip netns del "$two"
} 2>/dev/null
trap 'clean; rm -rf "$scratch"' EXIT

# The kernel says up to a second later that a link is there.
linked() {
    local try
    for try in {1..50}; do
        ip -n "$one" -br link show eth0 | grep -q LOWER_UP &&
            ip -n "$two" -br link show eth0 | grep -q LOWER_UP && return
        sleep 0.1
    done
    return 1
}

hosts() {
    ip netns add "$one" && ip netns add "$two" &&
        ip link add eth0 netns "$one" type veth peer name eth0 netns "$two" &&
        ip -n "$one" addr add 10.77.0.1/24 dev eth0 && ip -n "$two" addr add 10.77.0.2/24 dev eth0 &&
        ip -n "$one" addr add fd77::1/64 dev eth0 nodad && ip -n "$two" addr add fd77::2/64 dev eth0 nodad &&
        ip -n "$one" link set lo up && ip -n "$two" link set lo up &&
        ip -n "$one" link set eth0 up && ip -n "$two" link set eth0 up && linked &&
        ip netns exec "$one" unshare --pid --ipc --uts --fork --mount-proc true
} >"$out" 2>&1
if ! hosts; then
    skip "two hosts" "network namespaces cannot be made here"
    finish
fi

# on HOST NODE PROGRAM...: its two ranks.
on() {
    ip netns exec "$1" unshare --pid --ipc --uts --fork --mount-proc sh -c '
        hostname "$1"; run=$2 node=$3 master=$4; shift 4
        exec "$run" -n 2 --nnodes 2 --node-rank "$node" --master "$master" --timeout 60 -- "$@"' \
        - "host-$2" "$build/dcomm-run" "$2" "$master" "${@:3}"
}

# both PROGRAM...: four ranks on two hosts; the output of rank 0's host.
both() {
    on "$two" 1 "$@" >"$scratch/two" 2>&1 &
    on "$one" 0 "$@"
    local status=$?
    wait $! && return $status
    cat "$scratch/two"
    return 1
}

master=10.77.0.1:29700
expect "ranks of two hosts meet and sum" 0 "rank 1 of 4 on host-0" both "$build/examples/01_hello"
for op in allreduce reduce_scatter allgather broadcast alltoall; do
    expect "$op between hosts" 0 "4 ranks on 2 hosts" \
        both "$build/dcomm-perf" $op -b 4 -e 1M -f 512 -n 3 -w 1 -c 1 --algo all
done
master='[fd77::1]:29720'
expect "they meet over IPv6" 0 "rank 0 of 4 on host-0" both "$build/examples/01_hello"
finish
