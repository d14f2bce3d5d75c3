# gpu_steps.sh - the steps of tests/gpu.sh, in the order in which a run that is broken off teaches the
# most: what one finds, the later ones rely on.
# shellcheck shell=bash disable=SC2154,SC2034

# What a profiler looks at: a name, the kernel, how many of its launches it leaves out and takes, and the rows of
# bench/dcomm-kernels that launch it. Five calls are not timed. A re-encoding is the encoding kernel, too, and
# comes after the four that make its wires.
profiled=(
    "scan topk_scan 9 2 topk:k=0.01 encode, feedback" "digit topk_digit 9 3 topk:k=0.01 encode, feedback"
    "encode encode 5 2 qsgd:bits=4 encode" "recode encode 29 1 qsgd:bits=4 decode-sum-re-encode"
    "matrix_p matrix_p 5 2 powersgd:rank=4 P = M Q" "matrix_q matrix_q 5 2 powersgd:rank=4 Q = M^T P"
    "look look 5 2 look f32"
)

titles=([1]="the device, its kernels loaded, every half converted" [2]="what a driver holds up while a stream waits"
    [3]="few cases of each kernel against the CPU" [4]="how fast kernels are; at 2^22 as graphs"
    [5]="the full comparison" [6]="compute-sanitizer" [7]="what bounds kernels" [8]="CUB, torch, CuPy and Triton"
    [9]="collectives, NCCL's face, nccl-tests, torch (what UCX and hwloc are needed for)")

step_1() {
    part device 20 device "$bin/device"
    part load 40 load "$bin/load"
    part halves 40 cuda_kernels "$bin/cuda_kernels" --only halves
}

step_2() {
    part probe 110 probe "$bin/probe" --seconds 90
}

step_3() {
    part small 90 cuda_kernels "$bin/cuda_kernels" --small --seconds 70
}

step_4() {
    measured || return
    part kernels-28 120 dcomm-kernels "$bin/dcomm-kernels" --log2 28 --json "$results/kernels-28.json"
    part kernels-22 60 dcomm-kernels "$bin/dcomm-kernels" --log2 22 --graph --json "$results/kernels-22.json"
}

step_5() {
    part compare 200 cuda_kernels "$bin/cuda_kernels" --seconds 180
    part again 60 cuda_kernels "$bin/cuda_kernels" --only again --again 1000
}

# Its exit status is the program's unless told.
sanitized() { # NAME TOOL SECONDS PROGRAM ARGUMENTS...
    refused='Device not supported'
    part "$1" "$3" "compute-sanitizer $4" "${sanitizer:-compute-sanitizer}" --tool "$2" --error-exitcode 9 \
        --target-processes all --report-api-errors no "$bin/$4" "${@:5}"
    refused=
}

step_6() {
    local tool
    for tool in memcheck racecheck initcheck synccheck; do
        sanitized "$tool" "$tool" 100 cuda_kernels --small --seconds 60
    done
}

step_7() {
    local line name kernel skip count row
    measured || return
    for line in "${profiled[@]}"; do
        read -r name kernel skip count row <<<"$line"
        refused='ERR_NVGPUCTRPERM|Failed to initialize the profiler'
        part "ncu-$name" 40 "ncu dcomm-kernels" "${ncu:-ncu}" --kernel-name "regex:dcommi_cuda_${kernel}_kernel" \
            --launch-skip "$skip" --launch-count "$count" --section SpeedOfLight --section MemoryWorkloadAnalysis \
            --section Occupancy --section WarpStateStats "$bin/dcomm-kernels" --log2 26 --iterations 2 --only "$row"
        refused=
    done
}

step_8() {
    measured || return
    part cub 60 gpu-cub "$bin/gpu-cub" --json "$results/cub.json"
    part peers 120 python3 python3 -u bench/peers/gpu_peers.py --json "$results/peers.json"
}

step_9() {
    local name n run test
    # Each test by itself, so that one that hangs costs its own time alone. Where kernels are loaded when
    # they are first launched, no stream waits for a rank. Four ranks that are threads have more streams
    # than a device has queues by default.
    export CUDA_DEVICE_MAX_CONNECTIONS=32
    for name in "${device_tests[@]}"; do
        for test in $("$bin/$name" --list 2>/dev/null || echo all); do
            part "$name-${test#*/}" 30 "$name" env CUDA_MODULE_LOADING=EAGER "$bin/$name" "$test"
        done
    done
    for test in two_ranks threads; do
        part "lazy-$test" 30 test_device env CUDA_MODULE_LOADING=LAZY "$bin/test_device" "device/$test"
    done
    part lazy-between 30 test_device_order env CUDA_MODULE_LOADING=LAZY "$bin/test_device_order" \
        device_order/between
    unset CUDA_DEVICE_MAX_CONNECTIONS
    if measured; then
        for run in 2:cuda 4:cuda 2:cuda-shared 4:cuda-shared; do
            n=${run%%:*}
            perf "perf$n-${run#*:}" "$n" --mem "${run#*:}" --algo auto,ring,two_shot
        done
        perf perf2-qsgd 2 --mem cuda --codec qsgd:bits=4
        part verdicts 20 python3 python3 tests/device/gpu_verdicts.py "$results"
    fi
    for name in "${nccl_programs[@]}"; do
        part "nccl-$name" 30 "$name" "$bin/$name" 1
    done
    nccl_tests
    for n in 0 1 2; do
        part "torch-$n" 90 "torch lib/libnccl.so.2" env "LD_PRELOAD=$bin/lib/libnccl.so.2" \
            "LD_LIBRARY_PATH=$bin/lib" DCOMM_TUNE=0 python3 tests/device/gpu_torch.py "$n"
    done
    sanitized collectives memcheck 100 test_device one_rank two_ranks
    sanitized codecs memcheck 60 test_device_coded without_kernels judged_there
    sanitized streams memcheck 60 test_device_order between_kernels
}

perf() { # NAME RANKS ARGUMENTS...
    part "$1" 60 "dcomm-perf dcomm-run" "$bin/dcomm-run" -n "$2" -- "$bin/dcomm-perf" allreduce \
        -b 64K -e 64M -f 32 "${@:3}" --json "$results/$1.json"
}

# NVIDIA's nccl-tests, unmodified. They give each rank a GPU; processes that MPI starts can be told to take
# the first, all of them.
nccl_tests() {
    local n at type built=("$bin"/nccl-tests/*_perf)
    if [ ! -e "${built[0]}" ]; then
        skip "9 nccl-tests" "none is built; DCOMM_NCCL_TESTS names their sources"
        return
    fi
    for n in 1 $([ -z "$(command -v mpirun)" ] || echo 2 4); do
        for at in "${built[@]}"; do
            nccl_test "$(basename "${at%_perf}")" "$n" all -b 8 -e 32M -f 16
        done
    done
    for type in int8 uint8 int32 uint32 int64 uint64 half float double bfloat16; do
        nccl_test all_reduce "$n" "$type" -b 1M -e 1M -d "$type" -o all
    done
}

nccl_test() { # NAME RANKS WHAT ARGUMENTS...
    local start=()
    [ "$2" = 1 ] || start=(mpirun --allow-run-as-root --oversubscribe -n "$2")
    part "nccl-tests-$1-$2-$3" 60 "nccl-tests/$1_perf" env NCCL_TESTS_DEVICE=0 DCOMM_TUNE=0 \
        "LD_LIBRARY_PATH=$bin/lib" "${start[@]}" "$bin/nccl-tests/$1_perf" -g 1 -c 1 -w 1 -n 5 "${@:4}"
}
