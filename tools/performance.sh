#!/usr/bin/env bash
# performance.sh - measure everything in docs/performance.md: tables into docs/results/, plots into
# docs/img/. The cores must have nothing else to do; the whole takes two to three hours.
#
#   tools/performance.sh [--only NAME]... [--rounds N] [--smoke] [--render] [--targets] [--list]
#
# --only     these tables; --list names them, with their commands
# --rounds   of each (5; across hosts 3)
# --smoke    one short round of few sizes: that it works, not what it says
# --render   tables and plots from what was measured last (build/performance/), nothing measured
# --targets  beside that, how far the project's targets are met
set -u
cd "$(dirname "$0")/.." || exit 2
names=(two-ranks two-ranks-huge two-ranks-row registered four-ranks four-ranks-row exchange hosts-2x2
    hosts-2x2-cyclic hosts-4x2 hosts-4x2-cyclic)

# available PEER...: those that are here, with commas.
available() {
    local peer list=''
    for peer; do
        ! bench/peers/build.sh "$peer" build >/dev/null 2>&1 || list+=${list:+,}$peer
    done
    echo "${list:-none}"
}

# options NAME: compare.py's, with the sizes and rounds that matter there. Not every algorithm is timed
# beside what was chosen: only those that may be the best. MPICH spins, so that four ranks on two cores
# wait ten milliseconds for each call: it would take most of the time there.
options() {
    local here pair crowded hosts
    here="--peers $(available openmpi mpich gloo ucc intelmpi oneccl limit)"
    pair="--peers $(available openmpi mpich gloo ucc intelmpi oneccl limit bare)"
    crowded="--peers $(available openmpi gloo ucc intelmpi oneccl limit bare)
        --forced one_shot,two_shot,staged,recursive_doubling,halving_doubling,ring"
    hosts="--min 4K --warmup 1 --timeout 600 --peers $(available openmpi)
        --forced ring,halving_doubling,hier"
    case $1 in
    two-ranks) echo "-n 2" $pair "--forced one_shot,staged,recursive_doubling,halving_doubling" ;;
    two-ranks-huge) echo "-n 2 --mem huge --min 64K" $here \
        "--forced one_shot,two_shot,staged,recursive_doubling,halving_doubling" ;;
    registered) echo "-n 2 --mem registered --min 64K" $here \
        "--forced one_shot,two_shot,staged,recursive_doubling,halving_doubling" ;;
    four-ranks) echo "-n 4" $crowded ;;
    two-ranks-row) echo "-n 2 --row 50 --max 16K" $pair \
        "--forced one_shot,recursive_doubling,halving_doubling" ;;
    four-ranks-row) echo "-n 4 --row 50 --max 64K" $crowded ;;
    exchange) echo "--ops alltoall,allgather -n 2,4 --min 4K --factor 16" $here ;;
    hosts-2x2) echo "--hosts 2 --rate 1gbit" $hosts ;;
    hosts-2x2-cyclic) echo "--hosts 2 --rate 1gbit --order cyclic" $hosts ;;
    hosts-4x2) echo "--hosts 4 --rate 200mbit" $hosts ;;
    hosts-4x2-cyclic) echo "--hosts 4 --rate 200mbit --order cyclic" $hosts ;;
    esac
}

chosen=()
rounds=
smoke=()
render=0
targets=0
while [ $# -gt 0 ]; do
    case $1 in
    --only)
        [[ " ${names[*]} " == *" ${2:-} "* ]] || { echo "performance.sh: no table '${2:-}'" >&2; exit 2; }
        chosen+=("$2")
        shift
        ;;
    --rounds)
        [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "performance.sh: --rounds wants a number" >&2; exit 2; }
        rounds=$2
        shift
        ;;
    --smoke) smoke=(--rounds 1 --min 4K --max 256K --factor 64 --iterations 3 --warmup 1) ;;
    --render) render=1 ;;
    --targets) targets=1 ;;
    --list)
        for name in "${names[@]}"; do
            echo "$name: bench/peers/compare.py $(options "$name")"
        done
        exit 0
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "performance.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done
out=build/performance
[ ${#smoke[@]} -eq 0 ] || out=build/performance-smoke
mkdir -p $out

# The distribution's Python has the plotting library, which another one in PATH may lack.
python=python3
python3 -c 'import matplotlib' 2>/dev/null || [ ! -x /usr/bin/python3 ] || python=/usr/bin/python3

[ ${#chosen[@]} -gt 0 ] || chosen=("${names[@]}")
status=0
if [ $render -eq 0 ]; then
    [ -f build/build.ninja ] || meson setup build --buildtype=release || exit 1
    grep -q -e -O3 build/compile_commands.json ||
        echo "performance.sh: build/ is no release build (meson configure build --buildtype=release)" >&2
    ninja -C build dcomm-run dcomm-perf || exit 1
    for name in "${chosen[@]}"; do
        [[ $name == hosts-* ]] && count=${rounds:-3} || count=${rounds:-5}
        # shellcheck disable=SC2046
        bench/peers/compare.py $(options "$name") --rounds "$count" "${smoke[@]}" \
            --json "$out/$name.json" || { echo "performance.sh: $name failed" >&2; status=1; }
    done
fi
measured=()
for name in "${chosen[@]}"; do
    [ -f "$out/$name.json" ] && measured+=("$name")
done
# A smoke run shows that it works; the tables in docs/ stay as they are.
if [ ${#smoke[@]} -eq 0 ] && [ ${#measured[@]} -gt 0 ]; then
    "$python" tools/performance.py $out docs "${measured[@]}" || status=1
fi
[ $targets -eq 0 ] || "$python" tools/performance.py --targets $out || status=1
exit $status
