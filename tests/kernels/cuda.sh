#!/usr/bin/env bash
# cuda.sh [BUILD] [--update] - the CUDA kernels as nvcc sees them: all of them compile for the
# architectures that matter, without a warning, and none needs more registers or stack than
# tests/kernels/cuda_resources.tsv says, which --update writes. The everyday run compiles them to PTX,
# without ptxas, which takes as long again, and one program of each kind by CUDA's headers.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
. tests/lib/lib_cuda.sh
build=${1:-build}
update=
[ "${!#}" != --update ] || update=--update

if [ -z "$nvcc" ]; then
    skip "kernels compile with nvcc" "not installed"
    finish
fi
printf '#define DCOMM_CUDA_IMPLEMENTATION\n#include "dcomm.h"\n' >"$scratch/kernels.cu"
codes=(-gencode arch=compute_90,code=compute_90)
names=compute_90
if full || [ -n "$update" ]; then
    mapfile -t architectures < <(nvcc_architectures)
    names=${architectures[*]/#/sm_}
    codes=()
    for arch in "${architectures[@]}"; do
        codes+=(-gencode "arch=compute_$arch,code=sm_$arch")
    done
fi

compiles() {
    "$nvcc" "${nvcc_warnings[@]}" -t 0 "${codes[@]}" -Xptxas -v -I include -c \
        -o "$scratch/kernels.o" "$scratch/kernels.cu" >"$scratch/log" 2>&1
    local status=$?
    [ $status -eq 0 ] || grep -vE '^ptxas info|bytes stack frame' "$scratch/log"
    return $status
}
own_names() {
    # Weak ones are inline functions of CUDA's own headers.
    nm -g --defined-only "$scratch/kernels.o" | awk '$2 !~ /[WVu]/ {print $3}' >"$scratch/names" &&
        ! grep -v '^dcomm_' "$scratch/names"
}
same_sources() {
    nm -u "$scratch/kernels.o" | awk '{print $2}' | grep '^dcomm_' | sort >"$scratch/needed"
    grep -qx dcomm_codec_get_layout "$scratch/needed" && ! grep -q '^dcomm_comm' "$scratch/needed"
}
# What launchers call of the runtime and of the C library: nothing that takes memory, and to wait only
# where there is no stream, in one place. dcomm_cuda_load is no launcher: operator new is its own, and what
# the second line lists. It checks the device's arithmetic by a kernel on a stream of its own, and asks
# whether that has ended, for some time.
launches_alone() {
    nm -u "$scratch/kernels.o" | awk '{print $2}' | grep -E '^(cuda|cu[A-Z]|[cm]alloc)' |
        grep -vxE 'cuda(LaunchKernel|MemsetAsync|StreamSynchronize|GetLastError|GetErrorString)' |
        grep -vxE 'cuda(GetFuncBySymbol|GetKernel|GetDriverEntryPoint.*|GetDevice|GetSymbolAddress|MemcpyAsync|ThreadExchangeStreamCaptureMode|Stream(CreateWithFlags|Query|Destroy))' \
            >"$scratch/calls"
    cat "$scratch/calls"
    [ ! -s "$scratch/calls" ] && [ "$(grep -rh 'cudaStreamSynchronize(' kernels/cuda)" = \
        '        error = cudaStreamSynchronize(NULL);' ]
}
check "all kernels compile with nvcc for $names" compiles
[ "$bad" = 0 ] || finish
check "kernels' global symbols begin with dcomm_" own_names
check "kernels need no communicator" same_sources
check "launchers take no memory, and wait only where there is no stream" launches_alone
if full || [ -n "$update" ]; then
    check "registers, stack and spills are those of tests/kernels/cuda_resources.tsv" \
        tests/kernels/cuda_resources.py "$scratch/log" $update
fi

# A trainer in C: it includes no CUDA header, and the launchers' sentences reach it.
cat >"$scratch/trainer.c" <<'END'
#include "dcomm.h"
#include <string.h>
int main(void)
{
    float x[4] = {0};
    const void *src = x;
    return dcomm_cuda_reduce(x, &src, 1, 0, DCOMM_F32, DCOMM_SUM, 0, NULL) != DCOMM_OK ||
           dcomm_cuda_reduce(NULL, &src, 1, 4, DCOMM_F32, DCOMM_SUM, 0, NULL) != DCOMM_ERR_INVALID ||
           strstr(dcomm_last_error(), "dcomm_cuda_reduce: dst is NULL") == NULL;
}
END
trainer() {
    gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -I include -c -o "$scratch/trainer.o" \
        "$scratch/trainer.c" &&
        gcc -o "$scratch/trainer" "$scratch"/{trainer,kernels}.o "$build/libdcomm_one.a" \
            -L"$(dirname "$nvcc")/../lib64" -lcudart_static -lstdc++ -lrt \
            -lucp -lucs -luct -lhwloc -lm -lpthread -ldl &&
        "$scratch/trainer"
}
check "a C program with one .cu file" trainer

# The implementation with device memory, by CUDA's own headers and runtime. Where there is no driver,
# host memory is as good as ever, and a stream is refused with a sentence.
cat >"$scratch/ranks.c" <<'END'
#include "dcomm.h"
#include <stdio.h>
#include <string.h>
int main(void)
{
    float x[1000] = {1};
    dcomm_comm *comm = NULL;
    dcomm_coll_opts opts = {.stream = (void *)1};
    dcomm_status status = dcomm_comm_create(NULL, &comm);
    for (int i = 0; i < 3 && status == DCOMM_OK; i++) {
        status = dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 1000, DCOMM_F32, DCOMM_SUM, NULL);
    }
    if (status != DCOMM_OK || x[0] != 1) {
        printf("%s\n", dcomm_last_error());
        return 1;
    }
    status = dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 1000, DCOMM_F32, DCOMM_SUM, &opts);
    printf("%s: %s\n", dcomm_status_name(status), dcomm_last_error());
    return dcomm_comm_destroy(&comm) != DCOMM_OK ||
           (status != DCOMM_OK && strstr(dcomm_last_error(), "opts.stream") == NULL);
}
END
cuda_home=$(dirname "$nvcc")/..
device_memory() {
    gcc -std=gnu11 -O0 -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Werror -DDCOMM_WITH_CUDA \
        -I include -I "$cuda_home/include" -c -o "$scratch/dcomm.o" dcomm.c &&
        gcc -std=c11 -I include -c -o "$scratch/ranks.o" "$scratch/ranks.c" &&
        gcc -o "$scratch/ranks" "$scratch"/{ranks,dcomm,kernels}.o -L"$cuda_home/lib64" \
            -lcudart_static -lstdc++ -lrt -lucp -lucs -luct -lhwloc -lm -lpthread -ldl &&
        "$scratch/ranks"
}
check "the implementation with DCOMM_WITH_CUDA" device_memory
sources=(tests/device/test_device_order.c bench/dcomm-perf.c)
programs=(tests/kernels/cuda_kernels.cu tests/device/probe.cu)
syntax=(-fdevice-syntax-only) # else nvcc also compiles for a device
if full; then
    syntax=()
    sources+=(tests/device/test_device{,_coded,_feedback,_bucket,_bucket_errors,_scaler,_shared}.c)
    programs+=(bench/dcomm-kernels.cu bench/peers/gpu-cub.cu tests/device/gpu_device.cu)
fi
for source in "${sources[@]}"; do
    check "$source by CUDA's headers" gcc -std=gnu11 -Wall -Wextra -Wshadow -Werror -DDCOMM_WITH_CUDA \
        -I tests/lib/plain -I include -I "$cuda_home/include" -I tests/lib -fsyntax-only $source
done

for source in "${programs[@]}"; do
    check "$source: nvcc's front end" "$nvcc" "${nvcc_warnings[@]}" "${syntax[@]}" -I include \
        -I tests/kernels -cuda -o "$scratch/program.ii" $source
done
finish
