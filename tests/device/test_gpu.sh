#!/usr/bin/env bash
# test_gpu.sh - a rehearsal of tests/device/gpu.sh, which meets a GPU seldom: with a compiler, programs and a
# sanitizer that only pretend, every part is reached whatever the others do.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
real_python=$(command -v python3)
mkdir "$scratch/bin"

# nvcc: of -c it makes a file, and else a program that says its name and what $PRETEND holds for it.
cat >"$scratch/bin/nvcc" <<'END'
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
    cuda_kernels | dcomm-kernels | gpu-cub) [[ " $* " == *" -arch=sm_93 "* ]] || exit 2 ;;
    esac
    : >"$to"
    exit 0
    ;;
esac
cat >"$to" <<END2
#!/usr/bin/env bash
[ "$name" != device ] || { echo "\$PRETEND_DEVICE"; exit \${PRETEND_NONE:-0}; }
echo "ok - $name \$*"
[ "\$PRETEND_SLOW" != "$name" ] || sleep 60
[ "\$PRETEND_BROKEN" != "$name" ]
END2
chmod +x "$to"
END
cat >"$scratch/bin/compute-sanitizer" <<'END'
#!/usr/bin/env bash
echo "========= $2"
while [[ $1 == --* ]]; do
    shift 2
done
"$@"
END
printf '#!/usr/bin/env bash\necho "peers: $*"\n' >"$scratch/bin/python3"
# For nccl-tests: a make of two programs, and an MPI that starts one process.
mkdir -p "$scratch/theirs/src" "$scratch/mpi/lib" "$scratch/with_mpi"
cat >"$scratch/bin/make" <<'END'
#!/usr/bin/env bash
[[ " $* " == *" NCCL_HOME="*" NVCC_GENCODE=-gencode=arch=compute_93,code=sm_93 "* ]] || exit 2
[ -f "$2/../home/include/nccl.h" ] && [ -d "$2/src" ] || exit 2
mkdir "$2/build"
for name in all_reduce sendrecv; do
    printf '#!/usr/bin/env bash\n[ "$NCCL_TESTS_DEVICE" = 0 ] && [ "$PRETEND_BROKEN" != %s ]\n' $name >"$2/build/${name}_perf"
    chmod +x "$2/build/${name}_perf"
done
END
cat >"$scratch/with_mpi/mpirun" <<'END'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do
    [ "$1" != -n ] || shift
    shift
done
"$@"
END
printf '#!/usr/bin/env bash\necho %s\n' "$scratch/mpi/lib" >"$scratch/with_mpi/mpicxx"
chmod +x "$scratch"/with_mpi/*
chmod +x "$scratch"/bin/*

rehearse() {
    env PATH="$scratch/bin:$PATH" PRETEND_DEVICE="93 Pretended GPU, 7 multiprocessors" \
        PRETEND_UNBUILT= PRETEND_SLOW= PRETEND_BROKEN= "$@" tests/device/gpu.sh "$scratch/results"
}
# The parts that were reached, in order; with a ! those that failed.
parts() {
    sed -nE "s/^ok - /=/; s/^not ok - /!/; s/^(.)kernels' bytes.*/\1compare/p
        s/^(.)collectives: ([a-z_-]*).*/\1\2/p
        s/^(.)nccl-tests: ([a-z_]*).*/\1\2/p; s/^(.)nccl-tests compile.*/\1nccl-tests/p
        s/^(.)bench\/([a-z/_-]*).*after.*/\1\2/p; s/^(.)compute-sanitizer ([a-z]*).*/\1\2/p" "$1" |
        tr -d '=' | paste -sd' '
}
# says NAME STATUS PARTS COMMAND...: these parts on the terminal, and the same in results.txt.
says() {
    local name=$1 status=$2 wanted=$3 got
    shift 3
    "$@" >"$out" 2>&1 </dev/null
    got=$?
    [ $got -eq "$status" ] && [ "$(parts "$out")" = "$wanted" ] && cmp "$out" "$scratch/results/results.txt"
    got=$?
    [ $got -eq 0 ] || echo "not: $status, $wanted" >>"$out"
    ok "$name" $got
}
measured="dcomm-kernels peers/gpu-cub peers/gpu_peers"
collectives="test_device test_device_types test_device_order test_device_coded test_device_feedback test_device_bucket test_device_bucket_errors test_device_scaler test_device_shared"
timed="dcomm-perf dcomm-perf dcomm-perf dcomm-perf dcomm-perf verdicts"
memcheck="memcheck memcheck memcheck memcheck"

expect "no GPU: said, and no failure" 0 "^# skipped: .*there is no GPU: no driver" \
    rehearse PRETEND_NONE=1 PRETEND_DEVICE="no driver"
says "every part, in order" 0 "compare $collectives $timed $measured $memcheck racecheck" rehearse
says "a comparison that fails hides nothing" 1 "!compare $collectives $timed $measured !memcheck memcheck memcheck memcheck !racecheck" \
    rehearse PRETEND_BROKEN=cuda_kernels
says "a measurement that fails hides nothing" 1 \
    "compare $collectives $timed !$measured $memcheck racecheck" \
    rehearse PRETEND_BROKEN=dcomm-kernels
says "collectives that fail hide nothing" 1 \
    "compare !$collectives $timed $measured memcheck !memcheck memcheck memcheck racecheck" \
    rehearse PRETEND_BROKEN=test_device
says "tests that do not compile leave the measurements" 1 "$collectives $timed $measured memcheck memcheck memcheck" \
    rehearse PRETEND_UNBUILT=cuda_kernels
says "the CPU's side that does not compile leaves the peers" 1 "$collectives $timed ${measured#* } memcheck memcheck memcheck" \
    rehearse PRETEND_UNBUILT=alone
says "without measurements" 0 "compare $collectives $memcheck racecheck" \
    rehearse DCOMM_GPU_BENCH=0
types=$(printf ' all_reduce_perf%.0s' {1..10})
both="all_reduce_perf sendrecv_perf"
says "nccl-tests, a rank alone and ranks that MPI starts" 1 \
    "compare $collectives nccl-tests ${both/ / !} ${both/ / !} ${both/ / !}$types $memcheck racecheck" \
    rehearse DCOMM_GPU_BENCH=0 DCOMM_NCCL_TESTS="$scratch/theirs" CC=true PRETEND_BROKEN=sendrecv \
    PATH="$scratch/with_mpi:$scratch/bin:$PATH"
elsewhere() {
    rehearse DCOMM_GPU_BENCH=0 DCOMM_GPU_PREFIX=/opt/some PRETEND_ARGUMENTS="$scratch/arguments"
    grep -q -- '-I /opt/some/include .*-c' "$scratch/arguments" &&
        grep -q -- '-L /opt/some/lib -Xlinker -rpath -Xlinker /opt/some/lib .*-lucp' "$scratch/arguments"
}
check "UCX and hwloc of another place" elsewhere
says "what takes too long is ended when the time is up" 1 \
    "!compare !${collectives// / !} !memcheck !memcheck !memcheck !memcheck !racecheck" \
    rehearse DCOMM_GPU_BENCH=0 DCOMM_GPU_SECONDS=3 PRETEND_SLOW=cuda_kernels

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
