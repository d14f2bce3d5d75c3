#!/usr/bin/env bash
# examples.sh BUILD - the numbered examples, each of which verifies itself, alone and by ranks.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
mpirun=$(command -v mpirun.openmpi || command -v mpirun)
found=0
for example in "$build"/examples/[0-9]*; do
    [ -f "$example" ] && [ -x "$example" ] || continue
    found=1
    name=$(basename "$example")
    case $name in
    *mpi*)
        check "$name, 3 ranks of mpirun" timeout 60 env OMPI_ALLOW_RUN_AS_ROOT=1 \
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$mpirun" --oversubscribe -n 3 "$example"
        ;;
    *)
        check "$name, alone" timeout 60 "$example"
        check "$name, 3 ranks" "$build/dcomm-run" -n 3 --timeout 60 -- "$example"
        case $name in
        12_* | 13_*) others=$(full && echo 2 4 5 8) ;;
        15_*) others="$(full && echo 2 4 6) 8" ;;
        *) others=$(full && echo 2 4 8) ;;
        esac
        for n in $others; do
            check "$name, $n ranks" "$build/dcomm-run" -n "$n" --timeout 60 -- "$example"
        done
        ;;
    esac
done
# The ways to route and to balance experts; each must pay.
if [ -x "$build/examples/09_moe" ]; then
    for ranks in 3 $(full && echo 1 2 4 8); do
        for options in "--k 1 --aux --noise" "--replicas" $(full && echo --aux --noise); do
            check "09_moe $options, $ranks ranks" \
                "$build/dcomm-run" -n "$ranks" --timeout 60 -- "$build/examples/09_moe" $options
        done
    done
fi
# exits: six clean ends of two ranks, of one host and of two in turns, leave nothing on stderr; twelve with --full.
exits() {
    local try
    : >"$scratch/said"
    for try in {1..6} $(full && echo {1..6}); do
        DCOMM_IFACE=lo DCOMM_WARN_UNBOUND=0 "$build/dcomm-run" -n 2 --bind none --timeout 60 \
            --host-id-every $((1 + try % 2)) -- "$build/examples/02_allreduce_inplace" 2>>"$scratch/said" >"$scratch/o" || return
    done
    cat "$scratch/said"
    [ ! -s "$scratch/said" ]
}
if [ -x "$build/examples/02_allreduce_inplace" ]; then
    check "nothing is said on a clean exit" exits
fi
[ $found -eq 1 ] || skip "examples" "none is built"
finish
