#!/usr/bin/env bash
# setup.sh - install what dcomm needs on Debian 12, as far as it is missing.
#
#   tools/setup.sh [--build-only] [--no-install]
#
# --build-only leaves out what only the tests need. --no-install only says what is missing, and
# exits with 1 if anything is. Elsewhere than on Debian it never installs.
set -u
packages=(
    gcc libc6-dev meson ninja-build pkg-config python3 # to build
    libucx-dev libhwloc-dev                            # the libraries under dcomm
    zlib1g-dev                                         # dcomm-codec's compressed .npz files
    python3-matplotlib                                 # the plots of tools/report.py
)
test_packages=(
    g++ clang libclang-rt-14-dev llvm         # C++, the second compiler, fuzzing, sanitizers
    ccache                                    # what was compiled before is not compiled again
    libcriterion-dev binutils                 # unit tests, names in object files
    openmpi-bin libopenmpi-dev mpich libmpich-dev # other launchers, peers' benchmarks
    python3-jsonschema                        # the tools' JSON
    procps util-linux iproute2 ucx-utils      # processes, binding, namespaces, a link's speed
)
install=1
for argument; do
    case $argument in
    --build-only) test_packages=() ;;
    --no-install) install=0 ;;
    *)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
        [ "$argument" = --help ]
        exit $(($? * 2))
        ;;
    esac
done
packages+=("${test_packages[@]}")

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    missing=()
    for tool in cc meson ninja pkg-config python3; do
        command -v $tool >/dev/null || missing+=("$tool")
    done
    for library in ucx hwloc; do
        pkg-config --exists $library 2>/dev/null || missing+=("$library")
    done
    [ ${#missing[@]} -eq 0 ] && exit 0
    echo "setup.sh: please install: ${missing[*]} (Debian calls all of it: ${packages[*]})" >&2
    exit 1
fi

missing=()
for p in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ $install -eq 0 ]; then
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
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" >"$log" 2>&1
}
echo "setup.sh: installing ${missing[*]}"
if ! { apt update || { sleep 5 && apt update; }; }; then
    cat "$log" >&2
    echo "setup.sh: apt-get update failed twice; trying with the package lists at hand" >&2
fi
if ! apt install -y --no-install-recommends "${missing[@]}"; then
    cat "$log" >&2
    echo "setup.sh: apt-get install failed" >&2
    exit 1
fi
