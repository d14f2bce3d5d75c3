#!/usr/bin/env bash
# setup.sh - install what dcomm needs to be built and tested on Debian 12, as far as it is missing.
#
#   tools/setup.sh               install (as root, or with sudo)
#   tools/setup.sh --no-install  only say what is missing; exit 1 if anything is
set -u
packages=(
    gcc g++ libc6-dev meson ninja-build pkg-config python3   # build
    libucx-dev libhwloc-dev                                  # the library
    clang libclang-rt-14-dev llvm                            # second compiler, fuzzing, sanitizers
    libcriterion-dev binutils                                # tests
    openmpi-bin libopenmpi-dev mpich libmpich-dev            # other launchers, peers' benchmarks
    git procps iproute2 util-linux                           # the test scripts
)

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=()
for p in "${packages[@]}"; do
    installed "$p" || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "${1:-}" = --no-install ]; then
    echo "missing packages: ${missing[*]}"
    exit 1
fi

root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "setup.sh: cannot install ${missing[*]}: neither root nor sudo" >&2
        exit 1
    fi
    root=(sudo)
fi
echo "setup.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_all() {
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >"$log" 2>&1
}
update() {
    "${root[@]}" apt-get update -qq >"$log" 2>&1
}
if ! { update || { sleep 5 && update; }; }; then
    cat "$log" >&2
    echo "setup.sh: apt-get update failed; trying with the lists at hand" >&2
fi
if ! install_all; then
    cat "$log" >&2
    echo "setup.sh: apt-get install failed" >&2
    exit 1
fi
