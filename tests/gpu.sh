#!/usr/bin/env bash
# gpu.sh [OUT] - everything that needs a GPU, in one call of some minutes: builds with nvcc and its
# host compiler alone (codecs and kernels: no UCX, no hwloc, no network), compares every kernel's
# bytes with the CPU's, runs compute-sanitizer on small sizes where it is installed, and measures
# with bench/dcomm-kernels. OUT (default: build-gpu) gets the programs, kernels.txt and
# kernels.json. DCOMM_GPU_BENCH=0: without the measurements.
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
. tests/lib_cuda.sh
results=${1:-build-gpu}

no_device() {
    [ -z "$(nvidia-smi -L 2>/dev/null)" ]
}
if [ -z "$nvcc" ]; then
    skip "kernels on a device" "nvcc is not installed"
    finish
elif no_device; then
    skip "kernels on a device" "there is no GPU"
    finish
fi
mkdir -p "$results"
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d '. ')
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -1 | sed 's/^/# /'

cat >"$scratch/alone.c" <<'END'
#define _GNU_SOURCE
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm.h"
END
# each COMMAND...: in the background; what they say is in $out.
codecs() {
    "$nvcc" -O2 -Xcompiler -std=gnu11 -I include -c -o "$scratch/alone.o" "$scratch/alone.c"
}
folds() {
    "$nvcc" -O2 -Xcompiler -std=gnu11 -I include -c -o "$scratch/reference.o" tests/cuda_reference.c
}
program() {
    "$nvcc" "${nvcc_warnings[@]}" -O2 -lineinfo -arch="sm_$arch" -I include -I tests -c \
        -o "$scratch/$1.o" "$2" &&
        "$nvcc" -o "$results/$1" "$scratch/$1.o" "$scratch/alone.o" "$scratch/reference.o" -lm
}
codecs >"$scratch/codecs" 2>&1 &
first=$!
check "the CPU's folds compile" folds
wait $first
first=$?
cp "$scratch/codecs" "$out"
ok "the codecs compile" $first
check "the tests compile for sm_$arch" program cuda_kernels tests/cuda_kernels.cu
[ "$bad" = 0 ] || finish
"$results/cuda_kernels" || bad=1

# compute-sanitizer's exit status is the program's unless told.
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
for tool in memcheck racecheck; do
    if [ -x "$sanitizer" ]; then
        check "compute-sanitizer $tool" timeout 300 "$sanitizer" --tool $tool --error-exitcode 9 \
            --log-file "$results/$tool.log" "$results/cuda_kernels" --small
    else
        skip "compute-sanitizer $tool" "not installed"
    fi
done

if [ "${DCOMM_GPU_BENCH:-1}" != 0 ]; then
    check "bench/dcomm-kernels compiles" program dcomm-kernels bench/dcomm-kernels.cu
    if [ "$bad" = 0 ]; then
        "$results/dcomm-kernels" --json "$results/kernels.json" | tee "$results/kernels.txt"
        ok "bench/dcomm-kernels" "${PIPESTATUS[0]}"
    fi
fi
finish
