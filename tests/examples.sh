#!/usr/bin/env bash
# examples.sh BUILD - the numbered examples, each of which verifies itself, alone and by ranks.
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
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
        ;;
    esac
done
[ $found -eq 1 ] || skip "examples" "none is built"
finish
