#!/usr/bin/env bash
# build.sh PEER [BUILD] - build the program that times a peer, in BUILD/peers (build). Prints its
# launcher, the program, and a line NAME=VALUE for each variable that it needs. Where the peer is not
# installed, says so on stderr and exits with 1.
#
# PEER: openmpi mpich gloo ucc intelmpi oneccl; moe-openmpi and moe-mpich exchange experts' rows; limit,
# bare, core-pair and core-copy are the machine's own speed.
set -u
here=$(dirname "$(realpath "$0")")
build=$(realpath -m "${2:-$here/../../build}")
out=$build/peers
venv=$out/venv
warnings=(-Wall -Wextra)
mkdir -p "$out" || exit 1

missing() {
    echo "$peer is not installed ($*)" >&2
    exit 1
}

# compile PROGRAM COMMAND...: unless it is newer than the sources. Beside it first: others may be
# running the old one, or building too.
compile() {
    local program=$1 log
    shift
    if [ -x "$program" ] && [ -z "$(find "$here" "$here/.." -maxdepth 1 -newer "$program" \
        \( -name '*.c' -o -name '*.cc' -o -name '*.h' -o -name build.sh \) -print -quit)" ]; then
        return
    fi
    if ! log=$("$@" -o "$program.$$" 2>&1); then
        rm -f "$program.$$"
        echo "$peer: its program does not build: $*" >&2
        echo "$log" >&2
        exit 1
    fi
    mv "$program.$$" "$program"
}

# mpi FAMILY: an MPI's mpirun and compiler. Debian names both with a suffix; elsewhere the plain names
# may belong to either family.
mpi() {
    local suffix
    for suffix in ".$peer" ""; do
        mpicc=$(command -v "mpicc$suffix") && launcher=$(command -v "mpirun$suffix") &&
            "$launcher" --version 2>/dev/null | grep -q "$1" && return
    done
    return 1
}

peer=${1:-}
source=mpi-perf
case $peer in
moe-openmpi | moe-mpich) source=moe-mpi peer=${peer#moe-} ;;
esac
program=$out/$source-$peer
variables=()
case $peer in
openmpi)
    mpi Open || missing "Debian: apt-get install libopenmpi-dev openmpi-bin"
    compile "$program" "$mpicc" -O2 -std=c11 "${warnings[@]}" "$here/$source.c" -lm
    ;;
mpich)
    mpi HYDRA || missing "Debian: apt-get install libmpich-dev mpich"
    compile "$program" "$mpicc" -O2 -std=c11 "${warnings[@]}" "$here/$source.c" -lm
    ;;
gloo)
    program=$out/gloo-perf
    launcher=$build/dcomm-run
    [ -e /usr/include/gloo/allreduce.h ] || missing "Debian: apt-get install libgloo-dev g++"
    version=$(dpkg-query -W -f '${Version}' libgloo-dev 2>/dev/null) || version=unknown
    compile "$program" "${CXX:-g++}" -O2 "${warnings[@]}" -DPEER_VERSION="\"$version\"" \
        "$here/gloo-perf.cc" -lgloo
    ;;
ucc)
    program=$out/ucc-perf
    peer=openmpi mpi Open || missing "it wants Open MPI: Debian: apt-get install libopenmpi-dev openmpi-bin"
    [ -e "$out/ucc/include/ucc/api/ucc.h" ] || missing "bench/peers/setup.sh builds it"
    compile "$program" "$mpicc" -O2 -std=c11 "${warnings[@]}" -I"$out/ucc/include" "$here/ucc-perf.c" \
        -L"$out/ucc/lib" -Wl,-rpath,"$out/ucc/lib" -lucc -lm
    ;;
intelmpi | oneccl)
    launcher=$venv/bin/mpiexec.hydra
    # RPATH, not RUNPATH: what these libraries need is found there too.
    link=(-I"$venv/include" -L"$venv/lib" -Wl,--disable-new-dtags
        -Wl,-rpath,"$venv/lib:$venv/lib/libfabric")
    variables=(I_MPI_ROOT="$venv" FI_PROVIDER_PATH="$venv/lib/libfabric/prov"
        LD_LIBRARY_PATH="$venv/lib:$venv/lib/libfabric")
    [ -x "$launcher" ] && [ -e "$venv/include/mpi.h" ] || missing "bench/peers/setup.sh gets it by pip"
    if [ "$peer" = oneccl ]; then
        program=$out/ccl-perf
        variables+=(CCL_ROOT="$venv" CCL_ATL_TRANSPORT=mpi CCL_LOG_LEVEL=error)
        [ -e "$venv/include/oneapi/ccl.hpp" ] || missing "bench/peers/setup.sh gets it by pip"
        compile "$program" "${CXX:-g++}" -O2 "${link[@]}" "$here/ccl-perf.cc" -lmpi -l:libccl.so
    else
        compile "$program" "${CC:-cc}" -O2 -std=c11 "${warnings[@]}" "${link[@]}" \
            "$here/mpi-perf.c" -lmpi -lm
    fi
    ;;
limit)
    program=$out/limit-perf
    launcher=$build/dcomm-run
    compile "$program" "${CC:-cc}" -O2 -std=c11 "${warnings[@]}" "$here/limit-perf.c" -lm
    ;;
bare)
    program=$out/bare-perf
    launcher=$build/dcomm-run
    compile "$program" "${CC:-cc}" -O3 -march=native -std=c11 "${warnings[@]}" "$here/bare-perf.c" -lm
    ;;
core-pair | core-copy)
    program=$out/$peer
    launcher=
    command -v "${CC:-cc}" >/dev/null || missing "there is no C compiler"
    compile "$program" "${CC:-cc}" -O2 -std=c11 "${warnings[@]}" "$here/$peer.c" -lpthread
    ;;
*)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 2
    ;;
esac
printf '%s\n' "$launcher" "$program" "${variables[@]}"
