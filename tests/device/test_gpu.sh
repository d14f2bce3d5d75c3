#!/usr/bin/env bash
# test_gpu.sh BUILD - a rehearsal of tests/gpu.sh, which meets a GPU seldom: with a compiler, programs,
# tools and a torch that only pretend, every part is reached whatever the others do. The probe is run on
# the host stand-in for CUDA, as it is, and with calls that hold up others.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
real_python=$(command -v python3)
mkdir "$scratch/bin"

# nvcc: of -c it makes a file, and else a program that says its name and what $PRETEND holds for it.
cat >"$scratch/bin/nvcc" <<'END2'
#!/usr/bin/env bash
[ "$1" != --version ] || { echo "Cuda compilation tools, release 99.9"; exit 0; }
for i in "$@"; do
    [ "${last:-}" != -o ] || to=$i
    last=$i
done
name=$(basename "$to" .o)
[ -z "${DCOMM_GPU_PREFIX:-}" ] || [ "$name" != test_device ] || echo "$*" >>"$PRETEND_ARGUMENTS"
case " $* " in
*" -c "*)
    [ "$PRETEND_UNBUILT" != "$name" ] || { echo "error: $name"; exit 2; }
    case $name in
    cuda_kernels | dcomm-kernels | gpu-cub | launchers | probe)
        [[ " $* " == *" -gencode arch=compute_93,code=[sm_93,compute_93] "* ]] || exit 2 ;;
    esac
    : >"$to"
    exit 0
    ;;
esac
cat >"$to" <<END3
#!/usr/bin/env bash
[ "$name" != device ] || { echo "\$PRETEND_DEVICE"; exit \${PRETEND_NONE:-0}; }
[ "\$1" != --list ] || { echo "suite/all"; exit 0; }
echo "ok - $name \$*"
[ "$name" != dcomm-kernels ] || printf '# 2^2%s\n' '8, a target (of rows) >= 0.90 of copy: met, 1 of 1' '2, at most 3: missed'
[ "$name" != probe ] || echo "| cudaFree | held |"
[ "\$PRETEND_SLOW" != "$name" ] || sleep 60
[ "\$PRETEND_BROKEN" != "$name" ]
END3
chmod +x "$to"
END2
cat >"$scratch/bin/compute-sanitizer" <<'END2'
#!/usr/bin/env bash
echo "========= $2"
while [[ $1 == --* ]]; do
    shift 2
done
"$@"
END2
cat >"$scratch/bin/ncu" <<'END2'
#!/usr/bin/env bash
[ "$PRETEND_BROKEN" != ncu ] || { echo "==ERROR== ERR_NVGPUCTRPERM - no permission"; exit 1; }
[[ " $* " == *" --kernel-name regex:dcommi_cuda_"*"_kernel "* ]]
END2
# python3 has torch, and runs nothing; the debugger shows the threads of what hangs.
printf '#!/usr/bin/env bash\necho "peers: $*"\n' >"$scratch/bin/python3"
printf '#!/usr/bin/env bash\necho "threads of: $*"\n' >"$scratch/bin/cuda-gdb"
# For nccl-tests: a make of two programs, and an MPI that starts one process.
mkdir -p "$scratch/theirs/src" "$scratch/mpi/lib" "$scratch/with_mpi"
cat >"$scratch/bin/make" <<'END2'
#!/usr/bin/env bash
[[ " $* " == *" NCCL_HOME="*" NVCC_GENCODE=-gencode=arch=compute_93,code=sm_93 "* ]] || exit 2
[ -f "$2/../home/include/nccl.h" ] && [ -d "$2/src" ] || exit 2
mkdir "$2/build"
for name in all_reduce sendrecv; do
    printf "#!/usr/bin/env bash\n" >"$2/build/${name}_perf"
    printf '[ "$NCCL_TESTS_DEVICE" = 0 ] && [ -e "$LD_LIBRARY_PATH/libnccl.so.2" ] && [ "$PRETEND_BROKEN" != %s ]\n' \
        $name >>"$2/build/${name}_perf"
    chmod +x "$2/build/${name}_perf"
done
END2
cat >"$scratch/with_mpi/mpirun" <<'END2'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do
    [ "$1" != -n ] || shift
    shift
done
"$@"
END2
printf '#!/usr/bin/env bash\necho %s\n' "$scratch/mpi/lib" >"$scratch/with_mpi/mpicxx"
chmod +x "$scratch"/with_mpi/*
# A C compiler for NCCL's face: an empty file.
cat >"$scratch/bin/some-cc" <<'END2'
#!/usr/bin/env bash
for i in "$@"; do
    [ "${last:-}" != -o ] || : >"$i"
    last=$i
done
END2
chmod +x "$scratch"/bin/*

rehearse() {
    local how=(tests/gpu.sh)
    while [[ ${1:-} == --* ]]; do
        how+=("$1" "$2")
        shift 2
    done
    env PATH="$scratch/bin:$PATH" CC=some-cc PRETEND_DEVICE="93 Pretended GPU, 7 multiprocessors" \
        PRETEND_UNBUILT= PRETEND_SLOW= PRETEND_BROKEN= "$@" "${how[@]}" "$scratch/results"
}
# The parts that were reached, in order; with a ! those that failed.
parts() {
    sed -nE "s/^ok - /=/; s/^not ok - /!/; s/^(.)[1-9] ([A-Za-z0-9_-]*): .*/\1\2/p" "$1" | tr -d '=' | paste -sd' '
}
# says NAME STATUS PARTS COMMAND...: these parts on the terminal, and the same in results.txt.
says() {
    local name=$1 status=$2 wanted=$3 got
    shift 3
    rm -rf "$scratch/results"
    "$@" >"$out" 2>&1 </dev/null
    got=$?
    [ $got -eq "$status" ] && [ "$(parts "$out")" = "$wanted" ] && cmp "$out" "$scratch/results/results.txt"
    got=$?
    [ $got -eq 0 ] || echo "not: $status, $wanted; but $(parts "$out")" >>"$out"
    ok "$name" $got
}
first="device load halves probe small"
timed="kernels-28 kernels-22"
compared="compare again memcheck racecheck initcheck synccheck"
profiled="ncu-scan ncu-digit ncu-encode ncu-recode ncu-matrix_p ncu-matrix_q ncu-look"
peers="cub peers"
collectives="test_device-all test_device_types-all test_device_order-all test_device_waits-all"
collectives+=" test_device_coded-all test_device_feedback-all test_device_bucket-all test_device_bucket_errors-all"
collectives+=" test_device_scaler-all test_device_shared-all lazy-two_ranks lazy-threads lazy-between"
perf="perf2-cuda perf4-cuda perf2-cuda-shared perf4-cuda-shared perf2-qsgd verdicts"
nccl="nccl-single_process nccl-all_collectives nccl-send_recv nccl-registered_buffers nccl-thread_per_device"
last="torch-0 torch-1 torch-2 collectives codecs streams"
all="$first $timed $compared $profiled $peers $collectives $perf $nccl $last"
# broken NAME PART...: PARTS with a ! before these.
broken() {
    local part=" $1 " name
    shift
    for name in "$@"; do
        part=${part/ $name / !$name }
    done
    part=${part# }
    echo "${part% }"
}
# The plan needs no compiler, and leaves nothing behind.
plan() {
    env PATH="$scratch/none:/usr/bin:/bin" tests/gpu.sh --dry-run "$@" "$scratch/planned" >"$scratch/plan" &&
        [ ! -e "$scratch/planned" ]
}
planned() { # the parts of the plan
    sed -nE 's/^[1-9] ([^ ]*) +[0-9]+ s .*/\1/p' "$scratch/plan" | paste -sd' '
}
check "--dry-run" plan
whole_plan() {
    planned
    [ "$(planned)" = "$all" ] && grep -q '^2 probe  *[0-9]* s  probe --seconds' "$scratch/plan" &&
        [ "$(grep -c '^ *needs ' "$scratch/plan")" = "$(wc -w <<<"$all")" ]
}
check "the plan has every part, its limit, and what it needs" whole_plan
some_plan() {
    plan --only 2,5 && [ "$(planned)" = "probe compare again" ]
}
check "--dry-run --only" some_plan
expect "steps are 1 to 9" 2 "steps are 1 to 9" tests/gpu.sh --only 10
expect "an unknown argument" 2 "unknown argument '--fast'" tests/gpu.sh --fast

expect "no GPU: said, and no failure" 0 "^# skipped: .*there is no GPU: no driver" \
    rehearse PRETEND_NONE=1 PRETEND_DEVICE="no driver"
says "every part, in order" 0 "$all" rehearse
same_page() {
    cat "$scratch/results/results.md"
    ! grep '^#' "$scratch/results/results.md" | grep -vxFf docs/results/cuda-device.md &&
        grep -q '^| 2^28, a target (of rows) >= 0.90 of copy | met, 1 of 1 |' "$scratch/results/results.md" &&
        grep -q '^| 2^22, at most 3 | missed |' "$scratch/results/results.md" &&
        grep -q '^| cudaFree | held |' "$scratch/results/results.md" &&
        [ "$(grep -cE '^\| [1-9] \| .* \| [0-9]+ \| ' "$scratch/results/results.md")" = "$(wc -w <<<"$all")" ]
}
check "a run fills the page that docs/results has" same_page
says "some steps" 0 "probe compare again" rehearse --only 2,5
says "a comparison that fails hides nothing" 1 \
    "$(broken "$first $compared $peers" halves small compare again memcheck racecheck initcheck synccheck)" \
    rehearse --only 1,2,3,5,6,8 PRETEND_BROKEN=cuda_kernels
says "a measurement that fails hides nothing" 1 "!kernels-28 !kernels-22 $peers" \
    rehearse --only 4,8 PRETEND_BROKEN=dcomm-kernels
says "tests that do not compile leave the measurements" 1 "$timed $peers" \
    rehearse --only 3,4,5,6,8 PRETEND_UNBUILT=cuda_kernels
says "a profiler that may not: said, and no failure" 0 "probe" rehearse --only 2,7 PRETEND_BROKEN=ncu
says "without measurements" 0 "$compared" rehearse --only 4,5,6,7,8 DCOMM_GPU_BENCH=0
theirs() {
    local n name
    for n in 1 2 4; do
        for name in all_reduce sendrecv; do
            echo "nccl-tests-$name-$n-all"
        done
    done
    printf 'nccl-tests-all_reduce-4-%s\n' int8 uint8 int32 uint32 int64 uint64 half float double bfloat16
}
# shellcheck disable=SC2046
says "nccl-tests, a rank alone and ranks that MPI starts" 1 \
    "$(broken "$collectives $nccl $(theirs | paste -sd' ') $last" nccl-tests-sendrecv-{1,2,4}-all)" \
    rehearse --only 9 DCOMM_GPU_BENCH=0 DCOMM_NCCL_TESTS="$scratch/theirs" PRETEND_BROKEN=sendrecv \
    PATH="$scratch/with_mpi:$scratch/bin:$PATH"
elsewhere() {
    rehearse --only 1 DCOMM_GPU_PREFIX=/opt/some PRETEND_ARGUMENTS="$scratch/arguments"
    grep -q -- '-I /opt/some/include .*-c' "$scratch/arguments" &&
        grep -q -- '-L /opt/some/lib .*-lucp' "$scratch/arguments"
}
check "UCX and hwloc of another place" elsewhere
# Built in one place, run in another, where there is no compiler.
elsewhere_built() {
    rehearse --build "$scratch/made" --arch 93 && rm "$scratch/bin/nvcc" &&
        mv "$scratch/made" "$scratch/moved"
}
check "--build" elsewhere_built
says "--from, without a compiler; collectives that fail hide nothing" 1 \
    "$(broken "$first $collectives $perf $nccl $last" test_device-all lazy-two_ranks lazy-threads collectives)" \
    rehearse --only 1,2,3,9 --from "$scratch/moved" PATH="$scratch/bin:/usr/bin:/bin" PRETEND_BROKEN=test_device

says "what hangs is ended, with its threads' backtraces" 1 "device load halves !probe" \
    rehearse --only 1,2,3 --from "$scratch/moved" DCOMM_GPU_SECONDS=10 PRETEND_SLOW=probe
hung() {
    cat "$scratch/results/probe.txt" "$scratch/results/results.txt"
    grep -q 'threads of: -batch -p [0-9]* -ex thread apply all bt' "$scratch/results/probe.txt" &&
        grep -q '^not ok - in 10 s these were not reached: small$' "$scratch/results/results.txt"
}
check "and what was not reached is named" hung

# ---- the probe, on the host stand-in for CUDA ----
stand_in() {
    g++ -x c++ -std=c++17 -O1 -Wall -Wextra -Wshadow -Wpedantic -Werror -I nccl/host -o "$scratch/probe" \
        tests/device/probe.cu -L "$build/nccl" -lcudart_host -lpthread -Wl,-rpath,"$(realpath "$build/nccl")"
}
check "the probe compiles for the host stand-in" stand_in
answers() { # an answer to each question
    "$scratch/probe" --seconds 60 >"$scratch/probe.txt"
    cat "$scratch/probe.txt"
    [ "$(grep -cE '^\| .* \| (through in [0-9.]* ms|\*\*held\*\* .*) \|$' "$scratch/probe.txt")" = \
        "$("$scratch/probe" --list | grep -vc '^queues')" ] &&
        [ "$(grep -cE '^\| [0-9]+ \| (normal|greatest) (\| [a-z].*){4}\|$' "$scratch/probe.txt")" = 6 ]
}
check "the probe: every question has an answer" answers
expect "the probe: a call that waits for A lets others through" 0 \
    'cudaDeviceSynchronize \| returned after [0-9.]* ms, behind the word \| through' "$scratch/probe" --case device
expect "the probe: one that does not" 0 'a launch on A \| returned after [0-9.]* ms, before the word \| through' \
    "$scratch/probe" --case launch
expect "the probe: no such case" 2 "no case 'tea'" "$scratch/probe" --case tea
# A runtime whose cudaFree holds what copies need, until A moves; one whose cudaMalloc never returns; and one
# whose streams all share a queue.
cat >"$scratch/harsh.c" <<'END2'
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static int harsh(const char *what)
{
    const char *how = getenv("HARSH");
    return how != NULL && strcmp(how, what) == 0;
}
cudaError_t cudaFree(void *p)
{
    pthread_mutex_lock(&lock);
    cudaError_t error = NEXT(cudaFree)(p);
    pthread_mutex_unlock(&lock);
    return error;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    pthread_mutex_lock(&lock);
    cudaError_t error = NEXT(cudaMemcpyAsync)(to, from, n, kind, s);
    pthread_mutex_unlock(&lock);
    return error;
}
cudaError_t cudaIpcCloseMemHandle(void *p)
{
    (void)p;
    for (;;) {
        pause();
    }
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    static cudaStream_t one;
    if (!harsh("queues") || one == NULL) {
        cudaError_t error = NEXT(cudaStreamCreateWithPriority)(stream, flags, priority);
        one = *stream;
        return error;
    }
    *stream = one;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return harsh("queues") ? cudaSuccess : NEXT(cudaStreamDestroy)(stream);
}
END2
harsh() {
    gcc -std=gnu11 -shared -fPIC -I nccl/host -o "$scratch/libharsh.so" "$scratch/harsh.c" -ldl
}
check "a harsher runtime compiles" harsh
expect "the probe: a lock is seen, and ended" 0 \
    'cudaFree \| returned after [0-9.]* ms, behind the word \| \*\*held\*\* at a copy to the device for 700 ms; ended' \
    env LD_PRELOAD="$scratch/libharsh.so" "$scratch/probe" --case cudaFree
expect "the probe: a call without an end" 0 'cudaIpcCloseMemHandle \| no end, though the word was written' \
    env LD_PRELOAD="$scratch/libharsh.so" "$scratch/probe" --case close
expect "the probe: streams that share a queue" 0 '^\| 8 \| normal \| from 1; 40 of 40 \| from 1; 40 of 40 \|' \
    env HARSH=queues LD_PRELOAD="$scratch/libharsh.so" "$scratch/probe" --case queues:8:normal

# Verdicts on files that a machine might have written.
row() {
    printf '{"algo":"%s","codec":"%s","bytes":%d,"time_us_med":%s,"busbw_GBps":%s,"wire_bytes":%d}' "$@"
}
file() {
    local name=$1
    shift
    printf '{"hardware":{"pinned_GBps":20,"device_GBps":1000},"results":[%s]}' "$*" >"$scratch/$name"
}
file perf2-cuda.json "$(row ring none 67108864 1 99 67108864),$(row auto:two_shot none 67108864 4000 16.8 67108864)"
file perf2-cuda-shared.json "$(row auto:two_shot none 67108864 120 559 67108864)"
file perf2-qsgd.json "$(row auto:coded_two_shot qsgd:bits=4 67108864 800 84 8388608)"
verdicts() {
    "$real_python" tests/device/gpu_verdicts.py "$scratch" >"$out" 2>&1 &&
        [ "$(sed -nE 's/^# ([a-z]*), ([24]).*: (met|missed|not measured).*/\1\2 \3/p' "$out" | paste -sd,)" = "$1" ]
}
if [ -z "$real_python" ]; then
    skip "verdicts" "python3 is not installed"
else
    # 16.8 of 20; 67.1 MB * 1.25 / 1000 GB/s = 83.9 us; 5 times, of 8.
    check "verdicts: met, and missed" verdicts \
        "staged2 met,staged4 not measured,direct2 missed,direct4 not measured,compressed2 met"
    file perf2-cuda-shared.json "$(row auto:two_shot none 67108864 104 645 67108864)"
    file perf2-qsgd.json "$(row auto:coded_two_shot qsgd:bits=4 67108864 1001 84 8388608)"
    check "verdicts: missed, and met" verdicts \
        "staged2 met,staged4 not measured,direct2 met,direct4 not measured,compressed2 missed"
fi
finish
