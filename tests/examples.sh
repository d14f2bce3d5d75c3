#!/usr/bin/env bash
# examples.sh BUILD - every example verifies itself, alone and with a few ranks.
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
build=${1:-build}
for name in 01_hello 02_allreduce_inplace 03_overlap 04_from_cpp; do
    if [ ! -x "$build/examples/$name" ]; then
        skip "$name" "not built"
        continue
    fi
    check "$name alone" timeout 60 "$build/examples/$name"
    for n in 2 3 5; do
        check "$name, $n ranks" timeout 60 "$build/dcomm-run" -n $n -- "$build/examples/$name"
    done
done
if [ -x "$build/examples/05_mpi_bootstrap" ]; then
    mpirun=(mpirun)
    if mpirun --version 2>/dev/null | grep -q "Open MPI"; then
        mpirun+=(--oversubscribe --allow-run-as-root)
    fi
    for n in 1 3; do
        check "05_mpi_bootstrap, $n ranks" timeout 60 "${mpirun[@]}" -n $n \
            "$build/examples/05_mpi_bootstrap"
    done
else
    skip "05_mpi_bootstrap" "not built"
fi
finish
