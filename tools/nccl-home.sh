#!/usr/bin/env bash
# nccl-home.sh - make a folder that programs take for NCCL's, with dcomm in it: include/nccl.h and
# lib/libnccl.so.2.
#
#   tools/nccl-home.sh [--host] [--arch N]... DIRECTORY
#
# With CUDA, for the architectures that --arch names (default: 80 and 90), and with PTX of the newest
# of them, from which the driver makes code for newer devices. CUDA_HOME says where CUDA is (default:
# nvcc's own place, or /usr/local/cuda). With --host, for machines without a GPU: the
# folder then has a stand-in for CUDA's runtime too (include/cuda_runtime.h, lib/libcudart.so), on
# which programs without kernels of their own run. docs/from-nccl.md says how to use either.
# CC and CFLAGS (default: cc, -O2) are those of the C files.
set -u
from=$PWD
cd "$(dirname "$0")/.." || exit 2
host=0
archs=()
home=
while [ $# -gt 0 ]; do
    case $1 in
    --host) host=1 ;;
    --arch)
        archs+=("${2:-}")
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "nccl-home.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    *) home=$1 ;;
    esac
    shift
done
[ -n "$home" ] || { echo "nccl-home.sh: no directory is named; see --help" >&2; exit 2; }
[[ $home == /* ]] || home=$from/$home
[ ${#archs[@]} -gt 0 ] || archs=(80 90)
mkdir -p "$home/include" "$home/lib" || exit 1
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
cc=${CC:-cc}
read -ra flags <<<"${CFLAGS:--O2}"
flags+=(-std=c11 -fPIC -DDCOMM_WITH_CUDA -I include)
libraries=(-lucp -lucs -luct -lhwloc -lm -lpthread -ldl)

if [ $host = 1 ]; then
    flags+=(-I nccl/host)
    for f in nccl/host/*.c; do
        "$cc" "${flags[@]}" -c -o "$objects/$(basename "$f" .c).o" "$f" || exit 1
    done
    kernels=("$objects"/{codecs,fold,residual,lowrank,kernels}.o)
    runtime=()
    for f in "$objects"/*.o; do
        [[ " ${kernels[*]} " == *" $f "* ]] || runtime+=("$f")
    done
    "$cc" -shared -Wl,-soname,libcudart_host.so -o "$home/lib/libcudart_host.so" "${runtime[@]}" \
        -lpthread || exit 1
    ln -sf libcudart_host.so "$home/lib/libcudart.so"
    cp nccl/host/{cuda.h,cuda_runtime.h,cuda_runtime_api.h} "$home/include/"
    libraries+=(-L "$home/lib" -lcudart_host)
else
    nvcc=${CUDA_HOME:+$CUDA_HOME/bin/nvcc}
    nvcc=${nvcc:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
    [ -x "$nvcc" ] || { echo "nccl-home.sh: there is no nvcc; --host needs none" >&2; exit 1; }
    cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    codes=()
    for arch in "${archs[@]}"; do
        codes+=(-gencode "arch=compute_$arch,code=sm_$arch")
    done
    # PTX of an architecture with a letter, such as 90a, runs on no other.
    newest=$(printf '%s\n' "${archs[@]}" | grep -x '[0-9]*' | sort -n | tail -1)
    [ -z "$newest" ] || codes+=(-gencode "arch=compute_$newest,code=compute_$newest")
    flags+=(-I "$cuda/include")
    printf '#define DCOMM_CUDA_IMPLEMENTATION\n#include "dcomm.h"\n' >"$objects/kernels.cu"
    "$nvcc" -std=c++17 -O2 -t 0 -Xcompiler -fPIC "${codes[@]}" -I include \
        -c -o "$objects/kernels.o" "$objects/kernels.cu" || exit 1
    kernels=("$objects/kernels.o")
    libraries+=(-L "$cuda/lib64" -lcudart_static -lrt -lstdc++)
fi
for f in dcomm.c nccl/libnccl.c; do
    "$cc" "${flags[@]}" -c -o "$objects/$(basename "$f" .c)-all.o" "$f" || exit 1
done
"$cc" -shared -Wl,-soname,libnccl.so.2 -Wl,--version-script=nccl/libnccl.map \
    -Wl,-rpath,"\$ORIGIN" -o "$home/lib/libnccl.so.2" "$objects"/*-all.o "${kernels[@]}" \
    "${libraries[@]}" || exit 1
ln -sf libnccl.so.2 "$home/lib/libnccl.so"
cp include/dcomm_nccl.h "$home/include/nccl.h"
echo "$home: include/nccl.h and lib/libnccl.so.2"
