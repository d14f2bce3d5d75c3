#!/usr/bin/env bash
# gpu.sh - everything that needs a GPU, in the order in which a run that is broken off teaches the most.
#
#   tests/gpu.sh [--only N[,N]...] [OUT]             builds into OUT/bin for this GPU, and runs from there
#   tests/gpu.sh --from DIR [--only N[,N]...] [OUT]  runs what --build made; needs no compiler
#   tests/gpu.sh --build DIR [--arch N] [--jobs N]   builds for sm_N (default: 90) and newer; needs no GPU
#   tests/gpu.sh --dry-run [...]                     the plan: builds and runs nothing
#
# Steps: 1 the device, its kernels loaded, every half converted; 2 what a CUDA driver holds up while a
# stream waits (tests/device/probe.cu); 3 few cases of each kernel against the CPU; 4 bench/dcomm-kernels;
# 5 the full comparison; 6 compute-sanitizer; 7 ncu; 8 CUB, torch, CuPy and Triton; 9 collectives, NCCL's
# face, nccl-tests, torch. tests/lib/gpu_steps.sh has their parts. Each part has a time limit, and where
# it hangs its threads' backtraces are kept. No part keeps another from running; what is not there is named.
#
# OUT (default: build-gpu) gets results.txt, which has what is printed as it comes, results.md, a page of
# what was found, and of each part its output and its table as JSON.
# DCOMM_GPU_SECONDS: for all of it, the build too (default: 540); what was not reached then is named at the
# end, and the run has failed. DCOMM_GPU_BENCH=0: without what measures. DCOMM_GPU_PREFIX=DIR: UCX and hwloc
# are in DIR/include and DIR/lib. DCOMM_NCCL_TESTS=DIR: nccl-tests' sources, built in a copy.
from_here=$PWD
cd "$(dirname "$0")/.." || exit 2
. tests/lib/lib.sh
. tests/lib/lib_cuda.sh
. tests/lib/gpu_build.sh
. tests/lib/gpu_steps.sh

wrong_call() {
    echo "gpu.sh: $1; see --help" >&2
    exit 2
}
absolute() {
    [[ $1 == /* ]] && echo "$1" || echo "$from_here/$1"
}
dry='' from='' build='' only=1,2,3,4,5,6,7,8,9 arch=90 jobs=$(nproc) results=$PWD/build-gpu
while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry=yes ;;
    --from | --build | --only | --arch | --jobs)
        [ $# -gt 1 ] || wrong_call "$1 needs a value"
        case $1 in
        --from) from=$(absolute "$2") ;;
        --build) build=$(absolute "$2") ;;
        --only) only=$2 ;;
        --arch) arch=$2 ;;
        --jobs) jobs=$2 ;;
        esac
        shift
        ;;
    -h | --help) sed -n '2,/^from_here/{/^from_here/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) wrong_call "unknown argument '$1'" ;;
    *) results=$(absolute "$1") ;;
    esac
    shift
done
[[ $only =~ ^[1-9](,[1-9])*$ ]] || wrong_call "--only $only: steps are 1 to 9"
[ -z "$from" ] || [ -d "$from" ] || wrong_call "there is no folder $from"
[[ $arch =~ ^[0-9]+$ && $jobs =~ ^[1-9][0-9]*$ ]] || wrong_call "--arch and --jobs are numbers"
total=${DCOMM_GPU_SECONDS:-540}
bin=${from:-$results/bin}

if [ -n "$build" ]; then
    bin=$build
    [ -n "$nvcc" ] || wrong_call "nvcc is not installed"
    gpu_build "$arch" "$jobs" 3600
    glibc=$(find "$bin" -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
    echo "# $bin: $(cat "$bin/built"), $(du -sm "$bin" | cut -f1) MiB; needs ${glibc:-no C library}"
    finish
fi

# ---- what the parts need ----
tool() {
    local at
    for at in "$(command -v "$1")" "/usr/local/cuda/bin/$1" /opt/nvidia/*/*/"$1"; do
        [ ! -x "$at" ] || { echo "$at"; return; }
    done
}
sanitizer=$(tool compute-sanitizer)
ncu=$(tool ncu)
debugger=$(tool cuda-gdb)
debugger=${debugger:-$(tool gdb)}

# lacks WORD...: what of these programs, and tools, is not there, and why.
lacks() {
    local word
    for word in "$@"; do
        case $word in
        python3) [ -n "$(command -v python3)" ] || echo "python3 is not installed" ;;
        torch)
            python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' >/dev/null 2>&1 ||
                echo "torch is not installed"
            ;;
        compute-sanitizer) [ -n "$sanitizer" ] || echo "compute-sanitizer is not installed" ;;
        ncu) [ -n "$ncu" ] || echo "ncu is not installed" ;;
        *)
            if [ -z "$dry" ] || [ -n "$from" ]; then
                [ -e "$bin/$word" ] || echo "$word is not built"
            elif [ -z "$nvcc" ]; then
                echo "nvcc, which builds $word, is not installed"
            fi
            ;;
        esac
    done | paste -sd';'
}

# ---- a command with a time limit ----

# The processes of a session, which are all that a command has started.
members() { # ID
    local at line
    for at in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$at" || continue
        # After the name, which may be anything: state, parent, group, session.
        read -ra line <<<"${line##*) }"
        [ "${line[3]}" != "$1" ] || basename "$(dirname "$at")"
    done 2>/dev/null
}
backtraces() { # ID
    local pid
    for pid in $(members "$1" | head -4); do
        echo "# no end: process $pid, $(tr '\0' ' ' <"/proc/$pid/cmdline")"
        if [ -n "$debugger" ]; then
            timeout -k 2 10 "$debugger" -batch -p "$pid" -ex 'thread apply all bt' -ex 'info cuda kernels' </dev/null
        else
            echo "# its threads wait in: $(cat "/proc/$pid"/task/*/wchan 2>/dev/null | paste -sd' ')"
        fi
    done
}
running=
stop() {
    local pids
    mapfile -t pids < <(members "$running")
    kill "${pids[@]}" 2>/dev/null
    for _ in {1..30}; do
        [ -n "$(members "$running")" ] || break
        sleep 0.1
    done
    mapfile -t pids < <(members "$running")
    kill -KILL "${pids[@]}" 2>/dev/null
    running=
}
trap '[ -z "$running" ] || stop; exit 130' INT TERM

# limited SECONDS FILE COMMAND...: what it prints goes to FILE, and its threads' backtraces where its time,
# or that of all, is up: then the status is 124.
limited() {
    local end=$((SECONDS + $1)) file=$2 began=$SECONDS pid nap=0.02
    shift 2
    [ "$end" -le "$total" ] || end=$total
    setsid "$@" >"$file" 2>&1 </dev/null &
    running=$! pid=$!
    while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$end" ]; do
        sleep $nap
        [ "$SECONDS" -le $((began + 1)) ] || nap=0.2
    done
    if kill -0 "$pid" 2>/dev/null; then
        backtraces "$pid" >>"$file" 2>&1
        stop
        wait "$pid" 2>/dev/null
        return 124
    fi
    running=
    wait "$pid"
}

# ---- parts of a step ----
step=
refused= # where a part has failed and printed this, it may not be done here
rows=()
unreached=()
measured() {
    [ "${DCOMM_GPU_BENCH:-1}" != 0 ]
}
note() { # NAME SECONDS RESULT
    rows+=("| $step | $1 | $2 | $3 |")
    [ "$2" = 0 ] || page >"$results/results.md"
}

# part NAME SECONDS NEEDS COMMAND...: NEEDS are words, as `lacks` has them.
part() {
    local name=$1 most=$2 file=$results/$1.txt began=$SECONDS missing status said
    # shellcheck disable=SC2086
    missing=$(lacks $3)
    if [ -n "$dry" ]; then
        local what=${*:4}
        what=${what//"$bin/"/}
        printf '%s %-24s %4d s  %s\n%35sneeds %s: %s\n' "$step" "$name" "$most" "${what//"$results/"/OUT/}" "" \
            "${3// /, }" "${missing:-there$([ -n "$from" ] || echo ", or built first")}"
        return
    fi
    shift 3
    if [ -n "$missing" ]; then
        skip "$step $name" "$missing"
        note "$name" 0 "not run: $missing"
        return
    fi
    if [ "$SECONDS" -ge "$total" ]; then
        unreached+=("$name")
        note "$name" 0 "not reached"
        return
    fi
    limited "$most" "$file" "$@"
    status=$?
    if [ $status -ne 0 ] && [ -n "$refused" ] && grep -qE "$refused" "$file"; then
        skip "$step $name" "$(grep -m1 -E "$refused" "$file")"
        note "$name" $((SECONDS - began)) "refused"
        return
    fi
    said=good
    case $status in
    0) grep -v '^ok' "$file" ;;
    124) said="no end" ;;
    *) said="exit status $status" ;;
    esac
    ! grep -q '^ok' "$file" || said+=", $(grep -c '^ok' "$file") tests good"
    cp "$file" "$out"
    ok "$step $name: $said, $((SECONDS - began)) of $most s, after $SECONDS s" $status
    note "$name" $((SECONDS - began)) "$said"
}

# The page that a measured run fills.
page() {
    echo "# A run on a device"
    printf '\n%s\n' "${device#* }. Programs: $(cat "$bin/built" 2>/dev/null). $(date -u +%F)."
    printf '\n## Parts\n\n| step | part | seconds | result |\n| --- | --- | ---: | --- |\n'
    printf '%s\n' "${rows[@]}"
    printf '\n## Targets\n\n| target | result |\n| --- | --- |\n'
    sed -nE 's/^# (2\^28, [^:]*): (.*)/| \1 | \2 |/p' "$results/kernels-28.txt" 2>/dev/null
    sed -nE 's/^# (2\^22, at most[^:]*): (.*)/| \1 | \2 |/p' "$results/kernels-22.txt" 2>/dev/null
    sed -nE 's/^# ((staged|direct|compressed), [^:]*): (.*)/| \1 | \3 |/p' "$results/verdicts.txt" 2>/dev/null
    printf '\n## While a stream waits\n\n'
    grep -v '^ok' "$results/probe.txt" 2>/dev/null | sed '/^# no end/,$d'
}

steps() {
    for step in ${only//,/ }; do
        echo "# step $step: ${titles[$step]}"
        "step_$step"
        [ -n "$dry" ] || page >"$results/results.md"
    done
}
if [ -n "$dry" ]; then
    echo "# $total s for all. Step, part, its limit, what it runs; what that needs"
    steps
    exit 0
fi

# ---- the run ----
if [ -z "$from" ]; then
    if [ -z "$nvcc" ]; then
        skip "kernels on a device" "nvcc is not installed"
        finish
    fi
    if ! build_device "$scratch" >"$out" 2>&1; then
        ok "nvcc makes a program" 1
        finish
    fi
fi
if ! device=$("${from:-$scratch}/device"); then
    skip "kernels on a device" "there is no GPU: $device"
    finish
fi
# From here on everything is kept as it comes, also when this is cut off.
mkdir -p "$results" || exit 2
exec 3>&1 > >(tee "$results/results.txt") 2>&1
keeper=$!
echo "# ${device#* }; $(date -u +%FT%TZ)"
if [ -z "$from" ]; then
    rm -rf "$bin"
    gpu_build "${device%% *}" "$jobs" "$total"
    echo "# built after $SECONDS s"
fi
steps
[ ${#unreached[@]} -eq 0 ] || ok "in $total s these were not reached: ${unreached[*]}" 1
exec 1>&3 2>&3
wait "$keeper" # until all is written
finish
