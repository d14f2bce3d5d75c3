#!/usr/bin/env bash
# setup.sh [BUILD] - install the libraries that dcomm is compared with: from Debian Open MPI, MPICH and
# Gloo, and what measures the emulated hosts' links; by pip into BUILD/peers/venv (build) Intel MPI,
# oneCCL and numpy; from source into BUILD/peers/ucc UCC, of which UCC_SOURCE may name a Git repository that is
# at hand. Says what could not be had; exits with 1 if nothing could.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${1:-build}
if [ "${build#-}" != "$build" ]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' bench/peers/setup.sh
    [ "$build" = --help ] && exit 0 || exit 2
fi
packages=(openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev g++ libucx-dev ucx-utils iproute2
    python3-venv git make autoconf automake libtool)
# For topk.py; torch with its CUDA takes some gigabytes, so only if WITH_TORCH=1 says so.
python_packages=(numpy)
[ "${WITH_TORCH:-0}" != 1 ] || python_packages+=(torch)
# Later versions want a libfabric package that pip does not find; these bring their own.
wheels=(impi-rt==2021.14.2 impi-devel==2021.14.2 oneccl-devel==2021.14.1)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
had=0

root=()
[ "$(id -u)" -eq 0 ] || root=(sudo)
if command -v apt-get >/dev/null; then
    "${root[@]}" apt-get -qq update >"$log" 2>&1
    for p in "${packages[@]}"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] ||
            "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get -qq install -y --no-install-recommends "$p" >"$log" 2>&1; then
            had=1
        else
            echo "setup.sh: not to be had: $p: $(tail -n 1 "$log")" >&2
        fi
    done
else
    echo "setup.sh: no apt-get here: install yourself what Debian calls ${packages[*]}" >&2
fi

# One by one: oneCCL is not needed for Intel MPI.
venv=$build/peers/venv
python=/usr/bin/python3
[ -x $python ] || python=python3
if [ "$(uname -m)" != x86_64 ]; then
    echo "setup.sh: Intel MPI and oneCCL are for x86-64 only" >&2
elif [ -x "$venv/bin/python" ] || $python -m venv "$venv" >"$log" 2>&1; then
    for set in "${python_packages[@]}" "${wheels[*]:0:2}" "${wheels[2]}"; do
        # shellcheck disable=SC2086
        if "$venv/bin/python" -m pip install -q --disable-pip-version-check $set >"$log" 2>&1; then
            had=1
        else
            echo "setup.sh: not to be had: $set: $(tail -n 1 "$log")" >&2
        fi
    done
else
    echo "setup.sh: no Intel MPI, no oneCCL: $(tail -n 1 "$log")" >&2
fi

# The version of about this UCX's age.
ucc() {
    local prefix source=$build/peers/ucc-source
    prefix=$(realpath -m "$build/peers/ucc")
    [ ! -e "$prefix/lib/libucc.so" ] || return 0
    rm -rf "$source"
    git clone -q --depth 1 --branch v1.2.0 "${UCC_SOURCE:-https://github.com/openucx/ucc}" "$source" &&
        cd "$source" && ./autogen.sh && ./configure --prefix="$prefix" --with-ucx=/usr --without-cuda \
        --without-rocm --with-tls=self,ucp --disable-gtest CFLAGS='-O2 -Wno-error' &&
        make -j"$(nproc)" install
}
if (ucc) >"$log" 2>&1; then
    had=1
else
    echo "setup.sh: not to be had: UCC: $(grep -v '^ *$' "$log" | tail -n 1)" >&2
fi
[ $had -eq 1 ]
