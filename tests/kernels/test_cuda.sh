#!/usr/bin/env bash
# test_cuda.sh BUILD - the kernels' logic on the CPU, thread by thread, and their bytes against the
# CPU's own; see tests/kernels/cuda_kernels.cu and tests/kernels/cuda_shim.h. The everyday run has few and
# short cases of every kernel, and of the benchmark the syntax; with --full it has all.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
libraries=(-lucp -lucs -luct -lhwloc -lm -lpthread -ldl)
cxx=$(command -v g++ || command -v clang++)

reference() {
    gcc -std=gnu11 -O1 -I include -c -o "$scratch/reference.o" tests/kernels/cuda_reference.c
}
program() {
    "$cxx" -x c++ -std=c++17 -Wall -Wextra -Wshadow -Wno-unknown-pragmas -Werror -O1 \
        -DDCOMMI_CUDA_SHIM -I include -I tests/kernels -c -o "$scratch/kernels.o" tests/kernels/cuda_kernels.cu &&
        "$cxx" -o "$scratch/kernels" "$scratch/kernels.o" "$scratch/reference.o" \
            "$build/libdcomm_one.a" "${libraries[@]}"
}
check "the CPU's folds compile alone" reference
check "kernels compile for the CPU" program
[ "$bad" = 0 ] || finish
small=--small
! full || small=
# shellcheck disable=SC2086
"$scratch/kernels" $small
bad=$?
expect "a group of tests that there is not" 2 "^groups: codecs sparse" "$scratch/kernels" --only tea

# Every row of the benchmark, with new inputs and a poisoned output for each call.
benchmark() {
    local compile=("$cxx" -x c++ -std=c++17 -Wall -Wextra -Wshadow -Wno-unknown-pragmas -Werror -O1
        -DDCOMMI_CUDA_SHIM -I include -I tests/kernels)
    if ! full; then
        "${compile[@]}" -fsyntax-only bench/dcomm-kernels.cu
        return
    fi
    "${compile[@]}" -c -o "$scratch/bench.o" bench/dcomm-kernels.cu &&
        "$cxx" -o "$scratch/bench" "$scratch/bench.o" "$build/libdcomm_one.a" "${libraries[@]}" &&
        "$scratch/bench" --log2 12 --iterations 1 --json "$scratch/bench.json" >"$scratch/bench.txt" &&
        [ "$(grep -c '"time_us_med":[0-9.]*,' "$scratch/bench.json")" -gt 150 ] &&
        ! grep -q '"time_us_med":null' "$scratch/bench.json" &&
        "$scratch/bench" --log2 12 --iterations 1 --graph --only topk --json "$scratch/graphs.json" >"$scratch/bench.txt" &&
        [ "$(grep -c '"kernel":"topk.*"time_us_med":[0-9.]*,' "$scratch/graphs.json")" -gt 20 ] &&
        [ "$(grep -c '"kernel":' "$scratch/graphs.json")" = "$(grep -cE '"kernel":"(topk|launch)' "$scratch/graphs.json")" ]
}
check "bench/dcomm-kernels on the CPU" benchmark

# What the shim is for: it must notice what a device would not forgive.
cat >"$scratch/traps.cpp" <<'END'
#define DCOMMI_CUDA_SHIM
#include "cuda_shim.h"
struct arg {
    int trap;
    unsigned salt;
    unsigned char *p;
};
static void kernel(arg a)
{
    __shared__ unsigned room[64];
    if (a.trap == 1 && threadIdx.x < 16) {
        __syncthreads();
    } else if (a.trap == 1) {
        __syncwarp();
    } else if (a.trap == 2 && threadIdx.x < 16) {
        (void)__shfl_xor_sync(0xffffffffu, 1, 1);
    } else if (a.trap == 2) {
        (void)__shfl_xor_sync(0xffffffffu, 2, 1);
    } else if (a.trap == 3 && threadIdx.x < 16) {
        (void)__shfl_sync(0xffffu, 1, 20);
    } else if (a.trap == 4) {
        (void)__ldcs(reinterpret_cast<const uint2 *>(a.p + 4));
    } else if (a.trap == 5) { /* a barrier is missing */
        room[threadIdx.x] = threadIdx.x * a.salt;
        a.p[threadIdx.x] = (unsigned char)(room[63 - threadIdx.x] / a.salt);
    } else if (a.trap == 6) {
        room[threadIdx.x] = threadIdx.x * a.salt;
        __syncthreads();
        a.p[threadIdx.x] = (unsigned char)(room[63 - threadIdx.x] / a.salt);
    } else if (a.trap >= 8) { /* copies to shared memory: 8 never waits, 9 too late */
        const unsigned *from = reinterpret_cast<unsigned *>(a.p);
        for (unsigned i = 0; i < 3; i++) {
            __pipeline_memcpy_async(&room[i], from + i, sizeof *from);
            __pipeline_commit();
        }
        if (a.trap == 10) {
            __pipeline_wait_prior(1);
        }
        const bool landed = room[0] == from[0] && room[1] == from[1], last = room[2] == from[2];
        if (a.trap > 8) {
            __pipeline_wait_prior(0);
        }
        if (a.trap > 8 && (!landed || last || room[2] != from[2])) {
            std::exit(1);
        }
    }
}
int main(int argc, char **argv)
{
    alignas(16) static unsigned char p[64];
    unsigned sum[3] = {0};
    for (shim_order = 0; shim_order < 3; shim_order++) {
        arg a = {argc > 1 ? std::atoi(argv[1]) : 0, 3u + (unsigned)shim_order, p};
        const unsigned threads = a.trap < 8 ? 64 : 1;
        if (a.trap == 7) {
            cudaStreamBeginCapture(p, cudaStreamCaptureModeGlobal);
        }
        dcommi_cuda_start(kernel, 1, threads, a, nullptr);
        for (unsigned i = 0; i < 64; i++) {
            sum[shim_order] += p[i] * i;
        }
    }
    return sum[0] != sum[1] || sum[0] != sum[2];
}
END
traps() {
    "$cxx" -std=c++17 -O1 -I tests/kernels -o "$scratch/traps" "$scratch/traps.cpp"
}
check "traps compile" traps
expect "the shim: a barrier that some never reach" 3 "wait for each other in vain" "$scratch/traps" 1
expect "the shim: lanes at different operations" 3 "lanes meet" "$scratch/traps" 2
expect "the shim: a shuffle from a lane outside" 3 "not in the mask" "$scratch/traps" 3
expect "the shim: a launch beside a capture" 3 "another stream" "$scratch/traps" 7
expect "the shim: an access that is not aligned" 3 "not aligned" "$scratch/traps" 4
missing() {
    "$scratch/traps" 5
    [ $? -eq 1 ]
}
check "the shim: a missing barrier shows in some order" missing
check "the shim: the barrier in its place" "$scratch/traps" 6
expect "the shim: copies that nobody waits for" 3 "while copies are under way" "$scratch/traps" 8
early() {
    "$scratch/traps" 9
    [ $? -eq 1 ]
}
check "the shim: a copy has not landed before the wait" early
check "the shim: all copies but the last land at a wait" "$scratch/traps" 10
finish
