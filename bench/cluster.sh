#!/usr/bin/env bash
# cluster.sh - several hosts on one machine: each has its own network, processes, System V and POSIX
# shared memory, and host name; links between them are shaped. Runs a benchmark across them.
#
#   bench/cluster.sh [options] -- PROGRAM ARGUMENTS
#
#   --hosts M             how many (2)
#   --ranks-per-host K    (2)
#   --rate R              of each link, as tc writes it: 1gbit, 200mbit; none: not shaped (1gbit)
#   --flow-rate R         of each TCP connection, as clouds and bonded links limit it (none)
#   --order block|cyclic  neighbouring ranks share a host (default), or sit on different ones
#   --bind core|slice|none  cores of a host's ranks (core). Where there are enough for all ranks, each
#                         host has cores of its own; else all hosts have the machine's
#   --peer dcomm|openmpi|mpich|gloo|ucc|intelmpi|oneccl  whose launcher starts PROGRAM (dcomm). The
#                         PROGRAM called peer-perf is the one that times this peer (bench/peers)
#   --limit               measure the link's goodput first (ucx_perftest); with the rows of
#                         dcomm-perf, dcomm-ps and of peers, print the time that the links alone need
#   --outside             run PROGRAM once, outside of the hosts; cluster.sh inside it uses them
#   --on H                run PROGRAM once, on host H (from 0)
#   --timeout S           end the run after S seconds, with 124
#   --build DIR           where dcomm-run is (build)
#
# Nothing outlives this script, however it ends: hosts are held by its children and have no names.
# Exit: as PROGRAM; 2 usage, 3 the hosts cannot be made, 77 they are forbidden here (root?).
set -u
self=$(realpath "$0")
here=${self%/*}
hosts=2 per_host=2 rate=1gbit flow_rate=none order=block bind=core peer=dcomm
limit=0 mode=ranks on=0 timeout=0 build=$here/../build

say() {
    echo "cluster.sh: $*" >&2
}
usage() {
    say "$*; see --help"
    exit 2
}
count() {
    [[ $2 =~ ^[1-9][0-9]{0,2}$ ]] || usage "$1 wants a number from 1 to 999, not '$2'"
}

# ---- inside a cluster: DCOMM_CLUSTER is "RATE HEAD HOST0 HOST1 ...", processes that hold them ----

# enter H COMMAND...: on host H.
enter() {
    local at
    read -ra at <<<"$DCOMM_CLUSTER"
    [ -n "${at[2 + $1]:-}" ] || { say "there is no host $1"; return 2; }
    nsenter -t "${at[2 + $1]}" --mount --uts --ipc --net --pid --wdns="$PWD" "${@:2}"
}
# settle H COMMAND...: likewise, on the cores of that host's own, if it has any.
settle() {
    local cores
    read -ra cores <<<"${DCOMM_CLUSTER_CORES:-}"
    if [ -n "${cores[$1]:-}" ]; then
        enter "$1" taskset -c "${cores[$1]}" "${@:2}"
    else
        enter "$@"
    fi
}
export_hosts() {
    local at
    read -ra at <<<"$DCOMM_CLUSTER"
    rate=${at[0]} head=${at[1]} hosts=$((${#at[@]} - 2))
}

# Launchers of other libraries call this in place of ssh: [-OPTIONS] ADDRESS WORDS...
if [ -n "${DCOMM_CLUSTER_RSH:-}" ]; then
    unset DCOMM_CLUSTER_RSH
    while [[ $1 == -* ]]; do shift; done
    address=$1
    shift
    settle $((${address##*.} - 1)) bash -c "$*"
    exit
fi

[ $# -gt 0 ] || usage "there is nothing to run"
while [ $# -gt 0 ]; do
    option=$1
    case $option in
    --hosts | --ranks-per-host | --rate | --flow-rate | --order | --bind | --peer | --on | --timeout | --build)
        [ $# -gt 1 ] || usage "$option needs a value"
        shift
        ;;
    esac
    case $option in
    --hosts) count "$option" "$1"; hosts=$1 ;;
    --ranks-per-host) count "$option" "$1"; per_host=$1 ;;
    --rate) rate=$1 ;;
    --flow-rate) flow_rate=$1 ;;
    --order) order=$1 ;;
    --bind) bind=$1 ;;
    --peer) peer=$1 ;;
    --on) [[ $1 =~ ^[0-9]+$ ]] || usage "--on wants a host's number"; mode=on on=$1 ;;
    --timeout) [[ $1 =~ ^[0-9]+$ ]] || usage "--timeout wants seconds"; timeout=$1 ;;
    --build) build=$1 ;;
    --limit) limit=1 ;;
    --outside) mode=outside ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    --) shift; break ;;
    -*) usage "unknown option '$option'" ;;
    *) break ;;
    esac
    shift
done
[ $# -gt 0 ] || [ $limit -eq 1 ] || usage "there is nothing to run"
[[ $order == block || $order == cyclic ]] || usage "--order is block or cyclic, not '$order'"
[[ $bind == core || $bind == slice || $bind == none ]] || usage "--bind is core, slice or none"
[[ " dcomm openmpi mpich gloo ucc intelmpi oneccl " == *" $peer "* ]] || usage "no peer '$peer'"
build=$(realpath -m "$build")

# ---- making the hosts ----

# A process that holds new namespaces and, as the first of its PID namespace, all that runs there:
# it dies with its parent, and they with it. /sys/class/net shows the links of who mounted /sys; by
# boot_id some libraries tell hosts apart.
hold() {
    setpriv --pdeathsig KILL unshare --kill-child --fork "$@" sh -c '
        mount -t sysfs sysfs /sys
        mount -t tmpfs -o size=50% tmpfs /dev/shm
        cat /proc/sys/kernel/random/uuid >/dev/shm/boot_id
        mount --bind /dev/shm/boot_id /proc/sys/kernel/random/boot_id
        rm /dev/shm/boot_id
        hostname "$1"
        trap : TERM INT HUP
        while :; do sleep 3600 & wait $!; done' - "$name" >/dev/null 2>&1 </dev/null &
}

# held PID: the process that it forked, once its namespaces are what they will be.
held() {
    local child='' try
    for try in {1..100}; do
        child=$(cat "/proc/$1/task/$1/children" 2>/dev/null)
        child=${child%% *}
        [ -n "$child" ] && [ "$(nsenter -t "$child" --uts hostname 2>/dev/null)" = "$name" ] &&
            echo "$child" && return
        [ -d "/proc/$1" ] || return 1
        sleep 0.05
    done
    return 1
}

# The kernel says up to a second later that a link is there.
linked() {
    local try
    for try in {1..100}; do
        nsenter -t "$1" --net ip -br link show eth0 | grep -q LOWER_UP && return
        sleep 0.05
    done
    return 1
}

shape() {
    [ "$rate" = none ] || "$@" root tbf rate "$rate" burst 256k latency 50ms
}

# What leaves a host is put into one of 1024 classes by the sum of its two ports, so that connections
# rarely share one; behind the shaper of the link, if there is one.
shape_flows() {
    local where=root class tc=(nsenter -t "$1" --net tc)
    [ "$flow_rate" != none ] || return 0
    [ "$rate" = none ] ||
        where="parent $("${tc[@]}" qdisc show dev eth0 root | awk '{ print $3 }')"
    {
        echo "qdisc add dev eth0 $where handle 1: htb"
        echo "class add dev eth0 parent 1: classid 1:1 htb rate 100gbit quantum 60000"
        for ((class = 0x100; class < 0x500; class++)); do
            printf 'class add dev eth0 parent 1:1 classid 1:%x htb rate 8kbit ceil %s quantum 60000\n' \
                $class "$flow_rate"
        done
        # Ethernet type; the ports of IPv4 at 34 and 36, of IPv6 at 54 and 56; 1:100 + sum % 1024.
        echo "filter add dev eth0 parent 1: bpf bytecode \"15,40 0 0 12,21 1 0 2048,21 4 11 34525," \
            "40 0 0 34,7 0 0 0,40 0 0 36,5 0 0 3,40 0 0 54,7 0 0 0,40 0 0 56,12 0 0 0," \
            "84 0 0 1023,4 0 0 65792,22 0 0 0,6 0 0 0\" classid 1:1"
    } | "${tc[@]}" -batch -
}

make_hosts() {
    local pids='' h pid
    name=cluster-head
    hold --net --uts --mount --pid --mount-proc || return
    head=$(held $!) || return
    local net=(nsenter -t "$head" --net)
    "${net[@]}" ip link add hub type bridge && "${net[@]}" ip link set hub up &&
        "${net[@]}" ip link set lo up && "${net[@]}" ip addr add 10.77.0.254/24 dev hub || return
    for ((h = 0; h < hosts; h++)); do
        name=host-$h
        hold --net --uts --mount --ipc --pid --mount-proc || return
        pid=$(held $!) || return
        pids+=" $pid"
        "${net[@]}" ip link add "port$h" type veth peer name eth0 netns "$pid" &&
            "${net[@]}" ip link set "port$h" master hub up &&
            nsenter -t "$pid" --net sh -c "ip link set lo up && ip link set eth0 up &&
                ip addr add 10.77.0.$((h + 1))/24 dev eth0 &&
                ip addr add fd77::$((h + 1))/64 dev eth0 nodad" &&
            shape "${net[@]}" tc qdisc add dev "port$h" &&
            shape nsenter -t "$pid" --net tc qdisc add dev eth0 && shape_flows "$pid" &&
            linked "$pid" || return
    done
    export DCOMM_CLUSTER="$rate $head$pids"
}

# Parents first, so that none reports or replaces its children.
kill_tree() {
    local pid
    for pid; do
        kill -STOP "$pid"
        set -- $(cat "/proc/$pid/task/$pid/children")
        kill -KILL "$pid"
        kill_tree "$@"
    done
}

# Ends the run, then the holders: theirs are the only references to the hosts.
clean() {
    [ -z "${running:-}" ] || kill_tree "$running"
    kill_tree $(jobs -p)
    wait
} >/dev/null 2>&1

if [ -z "${DCOMM_CLUSTER:-}" ]; then
    if ! why=$(unshare --net --uts --mount --ipc --pid --fork --mount-proc sh -c '
        ip link add hub type bridge && ip link add port0 type veth peer name port1 &&
            tc qdisc add dev port0 root tbf rate 1gbit burst 256k latency 50ms' 2>&1); then
        say "hosts cannot be made here: $(tail -n 1 <<<"$why") (it takes root, and a machine that" \
            "allows namespaces)"
        exit 77
    fi
    trap clean EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    log=$(mktemp)
    if ! make_hosts 2>"$log"; then
        cat "$log" >&2
        rm -f "$log"
        say "the hosts could not be made"
        exit 3
    fi
    rm -f "$log"
else
    export_hosts
fi

# ---- running on them ----

# The cores that this process may use, dealt to the hosts in turn, if there is one for each rank: or
# the first ranks of all hosts would be bound to the same one.
deal_cores() {
    local part cores=() h
    for part in $(taskset -cp $$ | sed 's/.*: //; s/,/ /g'); do
        mapfile -t -O ${#cores[@]} cores < <(seq "${part%-*}" "${part#*-}")
    done
    DCOMM_CLUSTER_CORES=
    if [ "$bind" != none ] && [ $((hosts * per_host)) -le ${#cores[@]} ]; then
        for ((h = 0; h < hosts; h++)); do
            part=${cores[*]:h * per_host:per_host}
            DCOMM_CLUSTER_CORES+=" ${part// /,}"
        done
    fi
    export DCOMM_CLUSTER_CORES
}
deal_cores

# goodput: bytes per second that one host gets to another through UCX.
goodput() {
    local port=$((13000 + RANDOM % 20000)) size=1048576 n result
    case $rate in
    *gbit | none) n=200 ;;
    *) n=40 ;;
    esac
    local env=(env UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 UCX_WARN_UNUSED_ENV_VARS=n)
    enter 1 "${env[@]}" timeout 60 ucx_perftest -p $port >/dev/null 2>&1 &
    local server=$! try
    for try in {1..50}; do
        enter 1 ss -Hltn "sport = :$port" | grep -q . && break
        sleep 0.1
    done
    result=$(enter 0 "${env[@]}" timeout 60 ucx_perftest 10.77.0.2 -p $port -t tag_bw -s $size -n $n -w 10 -f)
    kill $server 2>/dev/null
    wait $server 2>/dev/null
    # The third column from the right is the overall bandwidth, in MiB/s.
    awk '$1 ~ /^[0-9]+$/ && NF >= 8 { x = $(NF - 2) }
         END { if (x > 0) printf "%.0f\n", x * 1048576; else exit 1 }' <<<"$result" ||
        { echo "$result" >&2; return 1; }
}

# annotate: behind each row of dcomm-perf or of a peer, what the links alone need.
annotate() {
    awk -v m="$hosts" -v k="$per_host" -v rate="$1" '
        BEGIN { times["allreduce"] = 2; times["alltoall"] = k
                times["allgather"] = times["reduce_scatter"] = 1 }
        function need(op, bytes) { return times[op] * (m - 1) / m * bytes / rate * 1e6 }
        /^# dcomm .*: / { op = $0; sub(/^# dcomm [^:]*: /, "", op); sub(/,.*/, "", op) }
        /^# dcomm-ps: / { ps = 1 } # its last column has the bytes that the busiest link carries
        ps && $1 ~ /^[0-9]+$/ && NF == 7 { us = $7 / rate * 1e12; median = $4 * 1e3 }
        $1 ~ /^[0-9]+$/ && NF >= 14 { us = need(op, $1); median = $7 } # dcomm-perf --wide
        $1 ~ /^[0-9]+$/ && NF == 9 { us = need(op, $1); median = $6 }
        $2 ~ /^[0-9]+$/ && NF == 5 { us = need($1, $2); median = $5 }
        { printf "%s", $0
          if (us > 0) printf "   limit %.2f us, time/limit %.3f", us, median / us
          printf "\n"
          us = 0
          fflush() }'
}

# Ranks that hear of another host's failure have 5 s to say so; then theirs are ended too.
# Each host's end comes through a pipe: bash's wait -n may miss one that ended before it looked.
run_dcomm() {
    local h _ status=0 ends program nodes=()
    export DCOMM_SECRET=${DCOMM_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
    export DCOMM_IFACE=${DCOMM_IFACE:-eth0}
    local master=${DCOMM_CLUSTER_MASTER:-10.77.0.1:$((20000 + RANDOM % 10000))}
    program=("$build/dcomm-run" -n "$per_host" --nnodes "$hosts" --rank-order "$order" --bind "$bind"
        --master "$master")
    [ "$timeout" -eq 0 ] || program+=(--timeout "$timeout")
    exec {ends}<> <(:)
    { settle 0 "${program[@]}" --node-rank 0 -- "$@"; echo $? >&"$ends"; } <&0 &
    nodes+=($!)
    for ((h = 1; h < hosts; h++)); do
        { settle $h "${program[@]}" --node-rank $h -- "$@"; echo $? >&"$ends"; } </dev/null &
        nodes+=($!)
    done
    for ((h = 0; h < hosts; h++)); do
        if [ $status -eq 0 ]; then
            read -r -u "$ends" status
        elif ! read -r -t 5 -u "$ends" _; then
            kill_tree "${nodes[@]}" >/dev/null 2>&1
            break
        fi
    done
    exec {ends}>&-
    return "$status"
}

addresses() {
    local h list=''
    for ((h = 1; h <= hosts; h++)); do
        list+=${list:+,}10.77.0.$h$1
    done
    echo "$list"
}

# Their launchers run beside the hosts, on the hub, and reach all hosts alike.
on_hub() {
    local cut=()
    [ "$timeout" -eq 0 ] || cut=(timeout -k 5 "$timeout")
    "${cut[@]}" setpriv --pdeathsig KILL nsenter -t "$head" --net --uts \
        env DCOMM_CLUSTER_RSH=1 "$@" </dev/null
}

run_openmpi() {
    local map=slot bound=core yield=()
    [ "$order" = block ] || map=node
    [ "$per_host" -le "$(nproc)" ] || bound=core:overload-allowed
    [ "$bind" != none ] || bound=none
    # All ranks share the machine's cores, whatever each host believes.
    [ $((hosts * per_host)) -le "$(nproc)" ] || yield=(--mca mpi_yield_when_idle 1)
    # shellcheck disable=SC2086
    on_hub "$launcher" --allow-run-as-root -n $((hosts * per_host)) \
        --host "$(addresses ":$per_host")" --map-by $map --bind-to $bound \
        --mca plm rsh --mca plm_rsh_agent "$self" --mca plm_rsh_no_tree_spawn 1 \
        --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca pml ob1 --mca btl vader,tcp,self "${yield[@]}" ${OPENMPI_ARGS:-} "$@"
}

run_mpich() {
    local each=$per_host bound=()
    [ "$order" = block ] || each=1
    [ "$bind" = none ] || bound=(-bind-to core)
    # shellcheck disable=SC2086
    on_hub UCX_NET_DEVICES=eth0 UCX_TLS=tcp,sm,self "$launcher" -launcher ssh \
        -launcher-exec "$self" -iface hub -hosts "$(addresses ":$each")" \
        -n $((hosts * per_host)) "${bound[@]}" ${MPICH_ARGS:-} "$@"
}

run_intelmpi() {
    local each=$per_host pin=()
    [ "$order" = block ] || each=1
    [ "$bind" != none ] || pin=(-genv I_MPI_PIN 0)
    [ $((hosts * per_host)) -le "$(nproc)" ] || pin+=(-genv I_MPI_WAIT_MODE 1)
    # shellcheck disable=SC2086
    on_hub "${variables[@]}" FI_PROVIDER=tcp FI_TCP_IFACE=eth0 "$launcher" -bootstrap ssh -bootstrap-exec "$self" \
        -iface hub -hosts "$(addresses '')" -ppn "$each" -n $((hosts * per_host)) \
        "${pin[@]}" ${INTELMPI_ARGS:-} "$@"
}

run_ucc() {
    local OPENMPI_ARGS="${UCC_ARGS:-} -x UCX_NET_DEVICES=eth0"
    [ $((hosts * per_host)) -le "$(nproc)" ] || OPENMPI_ARGS+=" -x PEER_YIELD=1"
    run_openmpi "$@"
}

run_oneccl() {
    local INTELMPI_ARGS=${ONECCL_ARGS:-}
    run_intelmpi "$@"
}

run_gloo() {
    local status
    PEER_STORE=$(mktemp -d)
    export PEER_STORE PEER_IFACE=eth0
    run_dcomm "$@"
    status=$?
    rm -rf "$PEER_STORE"
    return $status
}

run() {
    case $mode in
    outside) "$@" ;;
    on) enter "$on" "$@" ;;
    *) "run_$peer" "$@" ;;
    esac
}

# A peer's own benchmark, where only its name is given, is built.
if [ "$mode" = ranks ] && [ "$peer" != dcomm ]; then
    found=$("$here/peers/build.sh" "$peer" "$build") || exit 3
    mapfile -t found <<<"$found"
    launcher=${found[0]} variables=("${found[@]:2}")
    [ "${1:-}" != peer-perf ] || set -- "${found[1]}" "${@:2}"
fi

if [ $limit -eq 1 ]; then
    rate_measured=$(goodput) || { say "ucx_perftest (package ucx-utils) did not measure the link"; exit 3; }
    echo "# $hosts hosts, links of $rate: $rate_measured bytes/s from host to host"
    [ $# -gt 0 ] || exit 0
fi
# In the background: bash would run no trap before a command in the foreground has ended.
if [ $limit -eq 1 ] && [ "$mode" = ranks ]; then
    { set -o pipefail; run "$@" | annotate "$rate_measured"; } <&0 &
else
    run "$@" <&0 &
fi
running=$!
wait $running
status=$?
running=
exit $status
