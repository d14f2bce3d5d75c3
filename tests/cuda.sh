#!/usr/bin/env bash
# cuda.sh [BUILD] [--update] - the CUDA kernels as nvcc sees them: all of them compile for the
# architectures that matter, without a warning, and none needs more registers or stack than
# tests/cuda_resources.tsv says, which --update writes.
cd "$(dirname "$0")/.." || exit 2
. tests/lib.sh
. tests/lib_cuda.sh
update=
[ "${!#}" != --update ] || update=--update

if [ -z "$nvcc" ]; then
    skip "kernels compile with nvcc" "not installed"
    finish
fi
printf '#define DCOMM_CUDA_IMPLEMENTATION\n#include "dcomm.h"\n' >"$scratch/kernels.cu"
codes=()
while read -r arch; do
    codes+=(-gencode "arch=compute_$arch,code=sm_$arch")
done < <(nvcc_architectures)

compiles() {
    "$nvcc" "${nvcc_warnings[@]}" -t 0 "${codes[@]}" -Xptxas -v -I include -c \
        -o "$scratch/kernels.o" "$scratch/kernels.cu" >"$scratch/log" 2>&1
    local status=$?
    [ $status -eq 0 ] || grep -vE '^ptxas info|bytes stack frame' "$scratch/log"
    return $status
}
own_names() {
    nm -g --defined-only "$scratch/kernels.o" | awk '{print $3}' >"$scratch/names"
    ! grep -vE '^(dcomm_|fatbinData$|__fatbin|_ZTS|_ZTI)' "$scratch/names"
}
same_sources() {
    nm -u "$scratch/kernels.o" | awk '{print $2}' | grep '^dcomm_' | sort >"$scratch/needed"
    grep -qx dcomm_codec_get_layout "$scratch/needed" && ! grep -q '^dcomm_comm' "$scratch/needed"
}
check "all kernels compile with nvcc for$(nvcc_architectures | sed 's/^/ sm_/' | tr -d '\n')" compiles
[ "$bad" = 0 ] || finish
check "kernels' global symbols begin with dcomm_" own_names
check "kernels need no communicator" same_sources
check "registers, stack and spills are those of tests/cuda_resources.tsv" \
    tests/cuda_resources.py "$scratch/log" $update

for source in tests/cuda_kernels.cu bench/dcomm-kernels.cu; do
    check "$source: nvcc's front end" "$nvcc" "${nvcc_warnings[@]}" -I include -I tests -cuda \
        -o "$scratch/program.ii" $source
done
finish
