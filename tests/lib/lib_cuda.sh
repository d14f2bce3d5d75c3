# lib_cuda.sh - what the scripts share that compile the CUDA kernels.

# The toolkit's nvcc, in $PATH or where it installs itself; "" where there is none.
nvcc=$(command -v nvcc || { [ ! -x /usr/local/cuda/bin/nvcc ] || echo /usr/local/cuda/bin/nvcc; })
nvcc_warnings=(-std=c++17 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror)

# The architectures that are compiled for: three that matter, and the newest that nvcc knows.
nvcc_architectures() {
    local newest
    newest=$("$nvcc" --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$/\1/p' | sort -n | tail -1)
    printf '%s\n' 75 80 90 "$newest" | sort -nu
}
