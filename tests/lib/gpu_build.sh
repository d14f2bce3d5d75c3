# gpu_build.sh - what tests/gpu.sh runs, compiled into a folder: programs, and in lib/ what they need
# beyond the C library and the driver. No warnings are errors here: the toolkit may be one that nobody
# has tried.
# shellcheck shell=bash disable=SC2154,SC2016

device_tests=(test_device test_device_types test_device_order test_device_waits test_device_coded
    test_device_feedback test_device_bucket test_device_bucket_errors test_device_scaler test_device_shared)
nccl_programs=(single_process all_collectives send_recv registered_buffers thread_per_device)

# The device's architecture and its name: "90 NVIDIA H200, ...".
build_device() { # FOLDER
    "$nvcc" -o "$1/device" tests/device/gpu_device.cu -Xcompiler -static-libstdc++,-static-libgcc
}

# Whether there is what collectives are compiled with. `headers` is where it is, if not the system's.
networked() {
    printf '#include <ucp/api/ucp.h>\n#include <hwloc.h>\n' | cc -xc "${headers[@]}" -fsyntax-only - 2>/dev/null
}

# object NAME SOURCE FLAGS...: in the background, at most `jobs` at once.
object() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
    { timeout "$most" "$nvcc" "${@:3}" -O2 -I include -I tests/lib -I tests/kernels "${headers[@]}" \
        -c -o "$objects/$1.o" "$2" >"$objects/$1.log" 2>&1
    echo $? >"$objects/$1.status"; } &
    compiling+=($!)
}

# link FILE OBJECT...: with `libraries`.
link() {
    local file=$1 part files=()
    for part in "${@:2}"; do
        cp "$objects/$part.log" "$out"
        [ "$(cat "$objects/$part.status")" = 0 ] || {
            ok "$part compiles for sm_$arch" 1
            return 1
        }
        files+=("$objects/$part.o")
    done
    check "$file is linked for sm_$arch" "$nvcc" -o "$bin/$file" "${files[@]}" "${libraries[@]}" -lm \
        -Xcompiler -static-libstdc++,-static-libgcc
}

# program NAME OBJECT...: its own object, and these.
program() {
    link "$1" "$@"
}

# The library that stands in NCCL's place, and programs on it.
build_nccl() {
    local name
    CUDA_HOME=$cuda_home CFLAGS="-O2${prefix:+ -I $prefix/include}" LIBRARY_PATH=${prefix:+$prefix/lib} \
        tools/nccl-home.sh --arch "$arch" "$objects/home" || return
    cp "$objects/home/lib/libnccl.so.2" "$bin/lib/" || return
    for name in "${nccl_programs[@]}"; do
        "$nvcc" -O2 -I "$objects/home/include" -I include -o "$bin/$name" "examples/nccl/$name.c" \
            -L "$objects/home/lib" -lnccl -lpthread "${rpath[@]}" || return
    done
}

# NVIDIA's tests, unmodified, from a copy of their sources; with Open MPI, if it is there.
build_nccl_tests() {
    local mpi=()
    [ -z "$(command -v mpicxx)" ] || mpi=(MPI=1 "MPI_HOME=$(dirname "$(mpicxx --showme:libdirs | cut -d' ' -f1)")")
    cp -r "$DCOMM_NCCL_TESTS" "$objects/nccl-tests" || return
    rm -rf "$objects/nccl-tests/build"
    make -C "$objects/nccl-tests" -j "$jobs" "CUDA_HOME=$cuda_home" "NCCL_HOME=$objects/home" \
        "NVCC_GENCODE=-gencode=arch=compute_$arch,code=sm_$arch" "${mpi[@]}" || return
    mkdir -p "$bin/nccl-tests"
    cp "$objects"/nccl-tests/build/*_perf "$bin/nccl-tests/"
}

# The libraries that the programs, and those libraries, are linked with, but for those of the C library; and
# UCX's modules, which it looks for in ucx/ beside itself.
carry_libraries() {
    local found at ucx path=$bin/lib${prefix:+:$prefix/lib}:$cuda_home/lib64
    # Twice: modules have needs of their own.
    for _ in 1 2; do
        mapfile -t found < <(LD_LIBRARY_PATH=$path ldd "$bin"/* "$bin"/lib/*.so* "$bin"/lib/ucx/* \
            "$bin"/nccl-tests/* 2>/dev/null | sed -n 's/.* => \(\/.*\) (0x.*/\1/p' | sort -u |
            grep -vE '/(libc|libm|libpthread|libdl|librt|libgcc_s|libstdc\+\+|libcuda)\.so' | grep -vF "$bin/lib/")
        for at in "${found[@]}"; do
            cp -L "$at" "$bin/lib/" || return
            ucx=$(dirname "$at")/ucx
            if [[ $at == */libucs.so* ]] && [ -d "$ucx" ]; then
                mkdir -p "$bin/lib/ucx"
                cp -L "$ucx"/*.so.0 "$bin/lib/ucx/"
            fi
        done
    done
    find "$bin" -type f -exec strip --strip-debug {} + 2>/dev/null
    ! env -u LD_LIBRARY_PATH ldd "$bin"/* "$bin"/lib/*.so* 2>/dev/null | grep 'not found'
}

# gpu_build ARCH JOBS SECONDS: everything for this architecture into `bin`; its PTX too, for newer ones. Each
# file has so many seconds.
gpu_build() {
    local arch=$1 jobs=$2 most=$3 objects=$scratch/objects prefix=${DCOMM_GPU_PREFIX:-} name more networked=''
    local headers=(${prefix:+-I "$prefix/include"}) libraries=() code=() compiling=()
    local with_cuda=(-Xcompiler "-std=gnu11,-fPIC" -DDCOMM_WITH_CUDA)
    local rpath=(-Xlinker -rpath -Xlinker '$ORIGIN/lib' -Xlinker --disable-new-dtags)
    local cuda_home
    cuda_home=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    mkdir -p "$objects" "$bin/lib" || return
    code=(-std=c++17 -lineinfo -gencode "arch=compute_$arch,code=[sm_$arch,compute_$arch]")
    printf '#define %s\n' _GNU_SOURCE DCOMM_NO_COMM DCOMM_IMPLEMENTATION >"$objects/alone.c"
    echo '#include "dcomm.h"' >>"$objects/alone.c"
    printf '#define DCOMM_CUDA_IMPLEMENTATION\n#include "dcomm.h"\n' >"$objects/launchers.cu"
    networked && networked=yes
    # The long ones first.
    object cuda_kernels tests/kernels/cuda_kernels.cu "${code[@]}"
    object dcomm-kernels bench/dcomm-kernels.cu "${code[@]}"
    object launchers "$objects/launchers.cu" "${code[@]}" -Xcompiler -fPIC
    object gpu-cub bench/peers/gpu-cub.cu "${code[@]}"
    [ -z "$networked" ] || object implementation dcomm.c "${with_cuda[@]}"
    object probe tests/device/probe.cu "${code[@]}"
    object alone "$objects/alone.c" -Xcompiler "-std=gnu11,-fPIC"
    object reference tests/kernels/cuda_reference.c -Xcompiler -std=gnu11
    object load tests/device/gpu_load.c -Xcompiler -std=gnu11
    if [ -n "$networked" ]; then
        object slow_kernel tests/device/slow_kernel.cu "${code[@]}"
        for name in "${device_tests[@]}"; do
            object "$name" "tests/device/$name.c" "${with_cuda[@]}" -I tests/lib/plain
        done
        object dcomm-perf bench/dcomm-perf.c "${with_cuda[@]}"
        object dcomm-run bench/dcomm-run.c -Xcompiler -std=gnu11
    fi
    wait "${compiling[@]}"
    check "device compiles" build_device "$bin"
    program probe
    program gpu-cub
    # The kernels, once for all programs that need no more.
    libraries=(-cudart shared -shared)
    link lib/libdcomm_kernels.so launchers alone
    libraries=(-cudart shared "${rpath[@]}" -L "$bin/lib" -ldcomm_kernels)
    program load
    program cuda_kernels reference
    program dcomm-kernels
    libraries=()
    if [ -z "$networked" ]; then
        skip "programs with collectives" "UCX or hwloc is not installed"
    else
        program dcomm-run
        libraries=(-cudart shared "${rpath[@]}" ${prefix:+-L "$prefix/lib"} -L "$bin/lib")
        libraries+=(-lucp -lucs -luct -lhwloc -lpthread -ldl)
        # Their implementation, and the kernels, once for all of them.
        libraries+=(-shared)
        link lib/libdcomm_gpu.so implementation launchers
        unset 'libraries[-1]'
        libraries+=(-ldcomm_gpu)
        for name in "${device_tests[@]}"; do
            more=
            [ "$name" != test_device_order ] || more=slow_kernel
            # shellcheck disable=SC2086
            program "$name" $more
        done
        program dcomm-perf
        check "NCCL's face compiles for sm_$arch" build_nccl
        [ -z "${DCOMM_NCCL_TESTS:-}" ] || check "nccl-tests compile and link with dcomm" build_nccl_tests
    fi
    check "the libraries that programs need" carry_libraries
    echo "sm_$arch and PTX, $("$nvcc" --version | sed -n 's/^.*release //p')" >"$bin/built"
}
