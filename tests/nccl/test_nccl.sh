#!/usr/bin/env bash
# test_nccl.sh BUILD - NCCL's face as its users meet it: the library's names, the header's languages,
# and NCCL programs on 1 to 8 devices of the host stand-in; with CUDA they compile and link. The everyday
# run has fewer numbers of devices, and of what compiles the implementation once more the syntax.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
. tests/lib/lib_cuda.sh
build=${1:-build}
unset LD_LIBRARY_PATH # Meson sets it; programs must find the library without it
export DCOMM_TUNE=0 # to measure what things cost takes seconds where cores are few
header=(-I nccl/include)
stand_in=(-I nccl/host)

# ---- names ----
exported() {
    nm -D --defined-only "$build/nccl/libnccl.so.2" | awk '$2 == "T" {print $3}' | sort >"$scratch/names"
    ! grep -v '^p\?nccl[A-Z]' "$scratch/names"
}
declared() {
    sed -n 's/^DCOMM_NCCL_CALL([^,]*, \(nccl[A-Za-z0-9]*\).*/\1/p' include/dcomm_nccl.h |
        sed 'p;s/^/p/' | sort >"$scratch/declared"
    [ -s "$scratch/declared" ] && diff "$scratch/declared" "$scratch/names"
}
check "libnccl.so.2 exports NCCL's names alone" exported
listed() { # tests/data/nccl_symbols.txt says where the list is from
    sed -n 's/^2\.[0-9]* \(nccl[A-Za-z0-9]*\)$/\1/p' tests/data/nccl_symbols.txt | sed 'p;s/^/p/' | sort >"$scratch/listed"
    [ "$(wc -l <"$scratch/listed")" -ge 188 ] && diff "$scratch/listed" "$scratch/names"
}
check "the library has the calls of NCCL 2.27 to 2.32, and no others" listed
check "what the header declares is what the library has, under both names" declared
soname() {
    readelf -d "$build/nccl/libnccl.so.2" | grep -q 'SONAME.*\[libnccl.so.2\]'
}
check "the library's soname is NCCL's" soname

# ---- languages ----
printf '#include <nccl.h>\nint main(void)\n{\n    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;\n    return c.blocking == 1 || NCCL_VERSION_CODE != NCCL_VERSION(2, 27, 0);\n}\n' >"$scratch/one.c"
cp "$scratch/one.c" "$scratch/one.cpp"
cat >"$scratch/forms.cpp" <<'END' # calls that CUDA has in C++ alone, with CUDA's header too
#include <cuda_runtime.h>
int main()
{
    float *device, *pinned, *seen, *pooled;
    cudaEvent_t event;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    return cudaEventCreate(&event, cudaEventDisableTiming) || cudaEventDestroy(event) ||
           cudaMalloc(&device, 64) || cudaFree(device) ||
           cudaMallocHost(&pinned, 64, cudaHostAllocMapped) ||
           cudaHostGetDevicePointer(&seen, pinned, 0) || cudaFreeHost(pinned) ||
           cudaStreamCreate(&stream) || cudaMallocAsync(&pooled, 64, stream) ||
           cudaFreeAsync(pooled, stream) || cudaStreamSynchronize(stream) ||
           cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) ||
           cudaStreamEndCapture(stream, &graph) || cudaGraphInstantiate(&exec, graph) ||
           cudaGraphExecDestroy(exec) || cudaGraphDestroy(graph) || cudaStreamDestroy(stream);
}
END
sed 's/<nccl.h>/"dcomm_nccl.h"/' "$scratch/one.c" >"$scratch/two.c"
for cc in gcc clang; do
    command -v $cc >/dev/null || continue
    cxx=$([ $cc = gcc ] && echo g++ || echo clang++)
    check "<nccl.h>: $cc -std=c11" $cc -std=c11 -Wall -Wextra -Wpedantic -Werror "${header[@]}" \
        "${stand_in[@]}" -fsyntax-only "$scratch/one.c"
    check "\"dcomm_nccl.h\": $cc -std=c11" $cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I include \
        "${stand_in[@]}" -fsyntax-only "$scratch/two.c"
    check "<nccl.h>: $cxx -std=c++17" $cxx -std=c++17 -Wall -Wextra -Wpedantic -Werror \
        "${header[@]}" "${stand_in[@]}" -fsyntax-only "$scratch/one.cpp"
done

forms() {
    local at=$build/nccl
    "${cxx:-g++}" -std=c++17 -Wall -Wextra -Wpedantic -Werror "${stand_in[@]}" -o "$scratch/forms" \
        "$scratch/forms.cpp" -L "$at" -lcudart_host -Wl,-rpath,"$at" && "$scratch/forms"
}
check "forms of calls that CUDA has in C++" forms
[ -z "$nvcc" ] || check "CUDA has the same" "$nvcc" -std=c++17 -x cu -cuda -o "$scratch/forms.ii" "$scratch/forms.cpp"

# ---- NCCL's own header, where there is one, and CUDA's, which it includes ----
cuda=${nvcc:+$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include}
theirs=
for at in "${NCCL_HOME:+$NCCL_HOME/include}" "$cuda" /usr/include /usr/local/include; do
    [ -n "$theirs" ] || [ -z "$cuda" ] || [ -z "$at" ] || [ ! -f "$at/nccl.h" ] || theirs=$at/nccl.h
done
if [ -n "$theirs" ] && [ -n "$(command -v python3)" ]; then
    check "<nccl.h> has NCCL's names, values, layouts and types of functions" tests/nccl/nccl_abi.py "$theirs" "$cuda"
else
    skip "comparison with NCCL's own header" "there is none, or no CUDA"
fi

# ---- programs, run ----
unwarned() {
    "$build/examples/thread_per_device" 2 >"$scratch/said" 2>&1
    cat "$scratch/said"
    grep -q 'right$' "$scratch/said" && ! grep -q 'not bound' "$scratch/said"
}
check "threads, which nobody can bind, are not told to be" unwarned
for n in 1 3 8 $(full && echo 2 4); do
    for program in single_process thread_per_device send_recv all_collectives registered_buffers; do
        expect "$program on $n devices" 0 'right$' timeout 120 "$build/examples/$program" $n
    done
    expect "process_per_device on $n devices" 0 'right$' "$build/dcomm-run" -n $n --timeout 120 -- \
        "$build/examples/process_per_device" "$scratch/id.$n"
done
expect "an algorithm by DCOMM_ALGO" 0 'right$' env DCOMM_ALGO=ring "$build/examples/single_process" 3
expect "with what things cost measured" 0 'right$' env DCOMM_TUNE=1 "$build/examples/single_process" 3
expect "an algorithm that there is not" 1 'no_such' env DCOMM_ALGO=no_such \
    "$build/examples/single_process" 2
summary() {
    DCOMM_SUMMARY=$scratch/summary "$build/examples/single_process" 2 &&
        [ "$(grep -c 'rank [01] of 2: 1 operations' "$scratch/summary")" = 2 ]
}
check "a summary at exit, where it is asked for" summary
coded_summary() { # numbers come out rounded, which the program finds wrong
    ! DCOMM_CODEC=f16 DCOMM_SUMMARY=$scratch/coded "$build/examples/single_process" 2 &&
        [ "$(grep -c 'f16.*: 262144 elements encoded in 16 bits each, nmse [0-9.]*e-08' \
            "$scratch/coded")" = 2 ]
}
check "what a codec did, in the summary" coded_summary

# ---- with CUDA ----
ptx() { # by an nvcc that writes its arguments down
    mkdir -p "$scratch/cuda/bin" && printf '#!/bin/sh\necho "$@" >%s\nexit 1\n' "$scratch/arguments" >"$scratch/cuda/bin/nvcc" &&
        chmod +x "$scratch/cuda/bin/nvcc" || return
    ! CUDA_HOME=$scratch/cuda tools/nccl-home.sh --arch 80 --arch 120 --arch 90 --arch 90a "$scratch/none" || return
    cat "$scratch/arguments"
    for a in 80 120 90 90a; do
        grep -q -e "-gencode arch=compute_$a,code=sm_$a " "$scratch/arguments" || return
    done
    [ "$(grep -o 'code=compute_[0-9a]*' "$scratch/arguments")" = code=compute_120 ]
}
check "the folder's kernels have code for each architecture, and PTX of the newest" ptx
export CFLAGS=-O0
if [ -n "$nvcc" ] && ! full; then
    check "examples/nccl/single_process.c: nvcc, CUDA's headers" "$nvcc" -Werror all-warnings \
        "${header[@]}" -I include -c -o "$scratch/program.o" examples/nccl/single_process.c
elif [ -n "$nvcc" ]; then
    check "a folder like NCCL's, with CUDA" tools/nccl-home.sh --arch 80 "$scratch/home"
    for program in examples/nccl/*.c; do
        check "$program: nvcc, CUDA's runtime" "$nvcc" -Werror all-warnings -I "$scratch/home/include" \
            -o "$scratch/program" "$program" -L "$scratch/home/lib" -lnccl \
            -Xlinker -rpath="$scratch/home/lib"
    done
    expect "the loader finds it" 0 "libnccl.so.2 => $scratch/home/lib/" ldd "$scratch/program"
    cp "$scratch/one.c" "$scratch/one.cu"
    check "<nccl.h> in CUDA C++" "$nvcc" -std=c++17 -Werror all-warnings -I "$scratch/home/include" \
        -cuda -o "$scratch/one.ii" "$scratch/one.cu"
else
    skip "NCCL programs with nvcc" "not installed"
fi

# ---- without: by the commands of docs/from-nccl.md, in a folder of the user's ----
host_home() {
    local dcomm=$PWD commands=$scratch/commands.sh
    sed -n '/^Without a GPU/,/^\.\//s/^\(dcomm\/\|cc \|ldd \|\.\/\)/&/p' docs/from-nccl.md |
        sed 's/  *#.*//' >"$commands"
    [ "$(wc -l <"$commands")" -eq 4 ] || { cat "$commands"; return 1; }
    (mkdir "$scratch/user" && cd "$scratch/user" && ln -s "$dcomm" dcomm &&
        cp dcomm/examples/nccl/single_process.c program.c && cp dcomm/examples/nccl/check.h . &&
        bash -e "$commands" >said 2>&1; cat said
        grep -q 'right$' said && grep -q 'libnccl.so.2 => .*/nccl-home/lib/libnccl.so.2' said) &&
        [ ! -e nccl-home ] && ln -s "$scratch/user/nccl-home" "$scratch/host"
}
check "from-nccl.md's commands for machines without CUDA" host_home
preloaded() { # a program that is built, and knows nothing of where dcomm is
    gcc -o "$scratch/laptop" examples/nccl/single_process.c -I "$scratch/host/include" \
        -L "$scratch/host/lib" -lnccl -lcudart && ! "$scratch/laptop" 2 &&
        LD_LIBRARY_PATH=$scratch/host/lib "$scratch/laptop" 2
}
check "or by LD_LIBRARY_PATH" preloaded
copied() {
    mkdir "$scratch/copied" && cp include/dcomm.h include/dcomm_nccl.h "$scratch/copied" &&
        printf '#define %s\n' _GNU_SOURCE DCOMM_IMPLEMENTATION DCOMM_WITH_CUDA \
            DCOMM_NCCL_IMPLEMENTATION >"$scratch/copied/all.c" &&
        echo '#include "dcomm_nccl.h"' >>"$scratch/copied/all.c" &&
        cp examples/nccl/{check.h,single_process.c} "$scratch/copied" &&
        sed -i 's/<nccl.h>/"dcomm_nccl.h"/' "$scratch"/copied/{check.h,single_process.c} || return
    full || { gcc -std=c11 -I "$scratch/copied" "${stand_in[@]}" -fsyntax-only "$scratch"/copied/*.c; return; }
    for f in codecs fold residual lowrank kernels; do # in the .cu file's place
        gcc -std=c11 -I include "${stand_in[@]}" -c -o "$scratch/copied/$f.o" nccl/host/$f.c || return 1
    done
    gcc -std=c11 -I "$scratch/copied" "${stand_in[@]}" -o "$scratch/copied/program" \
        "$scratch"/copied/*.[co] -L "$scratch/host/lib" -lcudart -lucp -lucs -luct -lhwloc -lm \
        -lpthread -ldl &&
        LD_LIBRARY_PATH=$scratch/host/lib "$scratch/copied/program" 2
}
check "the two headers, copied, and a program with the implementation" copied
finish
