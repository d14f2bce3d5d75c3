#!/usr/bin/env bash
# gpu.sh [OUT] - everything that needs a GPU, in one call of some minutes: builds with nvcc and its
# host compiler alone (codecs and kernels: no UCX, no hwloc, no network), for this GPU alone;
# compares every kernel's bytes with the CPU's; where UCX and hwloc are installed, runs collectives of
# device memory with one to four ranks on this GPU, as processes and as threads, and says whether they
# are as fast as they should be; measures with bench/dcomm-kernels, and beside it what there is of
# bench/peers; where their sources are given, builds NVIDIA's nccl-tests against dcomm and runs them; last
# runs compute-sanitizer on few cases, of kernels and of collectives. No part keeps another from
# running. OUT (default: build-gpu) gets results.txt, which has what is printed as it comes, the
# comparison's lines, the tables as JSON, and the sanitizer's words.
# DCOMM_NCCL_TESTS=DIR: nccl-tests' sources, which are built in a copy; with Open MPI, ranks share the GPU.
# DCOMM_GPU_PREFIX=DIR: UCX and hwloc are in DIR/include and DIR/lib. DCOMM_GPU_BENCH=0: without the
# measurements. DCOMM_GPU_SECONDS: for all of it (default: 540).
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
. tests/lib/lib_cuda.sh
results=${1:-build-gpu}

if [ -z "$nvcc" ]; then
    skip "kernels on a device" "nvcc is not installed"
    finish
fi

# The runtime knows whether there is a GPU; nvidia-smi need not be there.
cat >"$scratch/device.cu" <<'END'
#include <cstdio>
int main()
{
    int n = 0;
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0 || (e = cudaGetDeviceProperties(&p, 0)) != cudaSuccess) {
        std::printf("%s\n", e != cudaSuccess ? cudaGetErrorString(e) : "no device");
        return 1;
    }
    std::printf("%d%d %s, %d multiprocessors, %.0f GiB, L2 %.0f MiB\n", p.major, p.minor, p.name,
                p.multiProcessorCount, (double)p.totalGlobalMem / (1 << 30),
                (double)p.l2CacheSize / (1 << 20));
}
END
if ! "$nvcc" -o "$scratch/device" "$scratch/device.cu" >"$scratch/device.log" 2>&1; then
    cp "$scratch/device.log" "$out"
    ok "nvcc makes a program" 1
    finish
fi
if ! device=$("$scratch/device"); then
    skip "kernels on a device" "there is no GPU: $device"
    finish
fi
arch=${device%% *}

# From here on everything is kept as it comes, also when this is cut off.
mkdir -p "$results" || exit 2
exec 3>&1 > >(tee "$results/results.txt") 2>&1
keeper=$!
leave() {
    exec 1>&3 2>&3
    wait "$keeper" # until all is written
    finish
}
echo "# ${device#* }; $("$nvcc" --version | sed -n 's/^.*release //p'); $(date -u +%FT%TZ)"

# limited SECONDS COMMAND...: for so long at most, and within the time of all; 124 when it is up.
limited() {
    local left=$((${DCOMM_GPU_SECONDS:-540} - SECONDS)) most=$1
    shift
    [ "$left" -gt 0 ] || return 124
    timeout -k 5 "$((left < most ? left : most))" "$@"
}

cat >"$scratch/alone.c" <<'END'
#define _GNU_SOURCE
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm.h"
END
# No warnings are errors here: the toolkit may be one that nobody has tried.
prefix=${DCOMM_GPU_PREFIX:-}
headers=(${prefix:+-I "$prefix/include"})
object() {
    limited 200 "$nvcc" "${@:3}" -O2 -I include -I tests/lib -I tests/kernels "${headers[@]}" \
        -c -o "$scratch/$1.o" "$2" >"$scratch/$1.log" 2>&1
    echo $? >"$scratch/$1.status"
}
built() {
    cp "$scratch/$1.log" "$out"
    return "$(cat "$scratch/$1.status" 2>/dev/null || echo 1)"
}
cuda=(-std=c++17 -lineinfo "-arch=sm_$arch")
object alone "$scratch/alone.c" -Xcompiler -std=gnu11 &
object reference tests/kernels/cuda_reference.c -Xcompiler -std=gnu11 &
object cuda_kernels tests/kernels/cuda_kernels.cu "${cuda[@]}" &
device_tests=(test_device test_device_types test_device_order test_device_coded test_device_feedback test_device_bucket
    test_device_bucket_errors test_device_scaler test_device_shared)
networked=
if printf '#include <ucp/api/ucp.h>\n#include <hwloc.h>\n' | cc -xc "${headers[@]}" -fsyntax-only - 2>/dev/null; then
    networked=yes
    printf '#define DCOMM_CUDA_IMPLEMENTATION\n#include "dcomm.h"\n' >"$scratch/launchers.cu"
    object launchers "$scratch/launchers.cu" "${cuda[@]}" &
    object slow_kernel tests/device/slow_kernel.cu "${cuda[@]}" &
    with_cuda=(-Xcompiler -std=gnu11 -DDCOMM_WITH_CUDA)
    object implementation dcomm.c "${with_cuda[@]}" &
    for name in "${device_tests[@]}"; do
        object $name tests/device/$name.c "${with_cuda[@]}" -I tests/lib/plain &
    done
    object dcomm-perf bench/dcomm-perf.c "${with_cuda[@]}" &
    object dcomm-run bench/dcomm-run.c -Xcompiler -std=gnu11 &
fi
if [ "${DCOMM_GPU_BENCH:-1}" != 0 ]; then
    object dcomm-kernels bench/dcomm-kernels.cu "${cuda[@]}" &
    object gpu-cub bench/peers/gpu-cub.cu "${cuda[@]}" &
fi
compiling=$(jobs -p)
# shellcheck disable=SC2086
wait $compiling
echo "# compiled for sm_$arch after $SECONDS s"

# program NAME OBJECT...: linked from NAME and these, and from `libraries`.
libraries=()
program() {
    local name=$1 part files=()
    for part in "$@"; do
        built "$part" || {
            ok "$part compiles for sm_$arch" 1
            return 1
        }
        files+=("$scratch/$part.o")
    done
    check "$name compiles for sm_$arch" "$nvcc" -o "$scratch/$name" "${files[@]}" "${libraries[@]}" -lm
    [ -x "$scratch/$name" ]
}

# ---- the same bytes as the CPU ----
if program cuda_kernels alone reference; then
    limited 200 "$scratch/cuda_kernels" --seconds 180 >"$results/compare.txt" 2>&1
    status=$?
    grep -v '^ok' "$results/compare.txt" | head -40
    ok "kernels' bytes are the CPU's: $(grep -c '^ok' "$results/compare.txt") tests good, after $SECONDS s" $status
fi

# ---- collectives of device memory: ranks on this GPU, as processes and as threads ----
if [ -z "$networked" ]; then
    skip "collectives of device memory" "UCX or hwloc is not installed"
else
    libraries=(${prefix:+-L "$prefix/lib" -Xlinker -rpath -Xlinker "$prefix/lib"}
        -lucp -lucs -luct -lhwloc -lpthread -ldl)
    export DCOMM_TEST_FULL=1 # all cases
    for name in "${device_tests[@]}"; do
        more=
        [ $name != test_device_order ] || more=slow_kernel
        # shellcheck disable=SC2086
        if program $name implementation launchers $more; then
            limited 150 "$scratch/$name" >"$results/$name.txt" 2>&1
            status=$?
            grep -v '^ok' "$results/$name.txt" | head -40
            ok "collectives: $name, $(grep -c '^ok' "$results/$name.txt") tests good, after $SECONDS s" $status
        fi
    done
    if [ "${DCOMM_GPU_BENCH:-1}" != 0 ] && program dcomm-perf implementation launchers &&
        libraries=() program dcomm-run; then
        for run in 2:cuda 4:cuda 2:cuda-shared 4:cuda-shared; do
            n=${run%%:*} mem=${run#*:}
            limited 60 "$scratch/dcomm-run" -n "$n" -- "$scratch/dcomm-perf" allreduce --mem "$mem" \
                -b 64K -e 64M -f 32 --algo auto,ring,two_shot --json "$results/perf$n-$mem.json"
            ok "collectives: dcomm-perf --mem $mem, $n ranks, after $SECONDS s" $?
        done
        limited 60 "$scratch/dcomm-run" -n 2 -- "$scratch/dcomm-perf" allreduce --mem cuda \
            -b 64K -e 64M -f 32 --codec qsgd:bits=4 --json "$results/perf2-qsgd.json"
        ok "collectives: dcomm-perf --mem cuda --codec qsgd:bits=4, after $SECONDS s" $?
        if [ -n "$(command -v python3)" ]; then
            python3 tests/device/gpu_verdicts.py "$results"
            ok "collectives: verdicts, after $SECONDS s" $?
        fi
    fi
    libraries=()
fi

# ---- how fast ----
if [ "${DCOMM_GPU_BENCH:-1}" != 0 ]; then
    if program dcomm-kernels alone; then
        limited 120 "$scratch/dcomm-kernels" --json "$results/kernels.json"
        ok "bench/dcomm-kernels, after $SECONDS s" $?
    fi
    if program gpu-cub; then
        limited 60 "$scratch/gpu-cub" --json "$results/cub.json"
        ok "bench/peers/gpu-cub, after $SECONDS s" $?
    fi
    if [ -n "$(command -v python3)" ]; then
        limited 120 python3 -u bench/peers/gpu_peers.py --json "$results/peers.json"
        ok "bench/peers/gpu_peers.py, after $SECONDS s" $?
    else
        skip "torch, CuPy, Triton" "python3 is not installed"
    fi
fi

# ---- NVIDIA's nccl-tests, unmodified, on dcomm ----
# They give each rank a GPU; processes that MPI starts can be told to take the first, all of them.
perf() { # NAME RANKS ARGUMENTS...
    local name=$1 n=$2 start=()
    shift 2
    [ "$n" = 1 ] || start=("$mpirun" --allow-run-as-root --oversubscribe -n "$n")
    limited 60 env NCCL_TESTS_DEVICE=0 DCOMM_TUNE=0 LD_LIBRARY_PATH="$scratch/home/lib${prefix:+:$prefix/lib}" \
        "${start[@]}" "$scratch/nccl-tests/build/${name}_perf" -g 1 -c 1 -w 1 -n 5 "$@"
    ok "nccl-tests: ${name}_perf $*, $n ranks, after $SECONDS s" $?
}
nccl_tests() {
    local cuda_home mpi=()
    cuda_home=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    cp -r "$DCOMM_NCCL_TESTS" "$scratch/nccl-tests" || return
    rm -rf "$scratch/nccl-tests/build"
    if [ -n "$mpirun" ]; then
        mpi=(MPI=1 "MPI_HOME=$(dirname "$(mpicxx --showme:libdirs | cut -d' ' -f1)")")
    fi
    CUDA_HOME=$cuda_home CFLAGS="-O2${prefix:+ -I $prefix/include}" LIBRARY_PATH=${prefix:+$prefix/lib} \
        limited 200 tools/nccl-home.sh --arch "$arch" "$scratch/home" &&
        limited 400 make -C "$scratch/nccl-tests" -j "$(nproc)" "CUDA_HOME=$cuda_home" "NCCL_HOME=$scratch/home" \
            "NVCC_GENCODE=-gencode=arch=compute_$arch,code=sm_$arch" "${mpi[@]}"
}
if [ -z "${DCOMM_NCCL_TESTS:-}" ]; then
    skip "nccl-tests" "DCOMM_NCCL_TESTS names no sources of theirs"
else
    mpirun=$(command -v mpirun)
    [ -n "$(command -v mpicxx)" ] || mpirun=
    check "nccl-tests compile and link with dcomm" nccl_tests
    for n in 1 ${mpirun:+2 4}; do
        for at in "$scratch"/nccl-tests/build/*_perf; do
            [ ! -x "$at" ] || perf "$(basename "${at%_perf}")" "$n" -b 8 -e 32M -f 16
        done
    done
    for type in int8 uint8 int32 uint32 int64 uint64 half float double bfloat16; do
        [ ! -x "$scratch/nccl-tests/build/all_reduce_perf" ] ||
            perf all_reduce "$n" -b 1M -e 1M -d $type -o all
    done
fi

# ---- compute-sanitizer; its exit status is the program's unless told ----
sanitizer=$(command -v compute-sanitizer || echo "$(dirname "$nvcc")/compute-sanitizer")
# sanitized TOOL WHAT SECONDS PROGRAM...: racecheck, the slowest, is the last.
sanitized() {
    local tool=$1 what=$2 most=$3 kept=$results/$1-$2.txt status
    shift 3
    limited "$most" "$sanitizer" --tool "$tool" --error-exitcode 9 --target-processes all \
        --report-api-errors no "$@" >"$kept" 2>&1
    status=$?
    grep -v '^ok' "$kept" >"$out"
    ok "compute-sanitizer $tool: $(grep -c '^ok' "$kept") tests of $what, after $SECONDS s" $status
}
for tool in memcheck racecheck; do
    if [ ! -x "$sanitizer" ]; then
        skip "compute-sanitizer $tool" "not installed"
    elif [ -x "$scratch/cuda_kernels" ]; then
        sanitized $tool kernels 100 "$scratch/cuda_kernels" --small --seconds 45
    fi
    if [ $tool = memcheck ] && [ -x "$sanitizer" ]; then
        [ ! -x "$scratch/test_device" ] || sanitized memcheck collectives 100 "$scratch/test_device" one_rank two_ranks
        [ ! -x "$scratch/test_device_coded" ] ||
            sanitized memcheck codecs 60 "$scratch/test_device_coded" without_kernels judged_there
        [ ! -x "$scratch/test_device_order" ] ||
            sanitized memcheck streams 60 "$scratch/test_device_order" between_kernels
    fi
done
leave
