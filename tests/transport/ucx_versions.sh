#!/usr/bin/env bash
# ucx_versions.sh BUILD - deaths between hosts with a newer UCX than the system's. It comes from PyPI, with
# its hash, and stays in the build directory.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=$(cd "${1:-build}" && pwd)
version=1.22.0
package="libucx-cu12==$version"
hash=sha256:5cbbef0c140a0a158ae3486089af659b38822b2234cd3dc90ba40a5e6553402a
ucx=$build/ucx-$version

# fetch: brings the package to $ucx, whole or not at all.
fetch() {
    [ -e "$ucx/lib/libucp.so.0" ] && return
    echo "$package --hash=$hash" >"$scratch/wanted"
    timeout 120 python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --require-hashes --dest "$scratch/wheel" --requirement "$scratch/wanted" || return
    python3 -m zipfile -e "$scratch"/wheel/*.whl "$scratch/ucx" || return
    rm -rf "$ucx" && mv "$scratch/ucx/libucx" "$ucx"
}

if [ "$(uname -m)" != x86_64 ]; then
    skip "UCX $version" "its package is for x86_64"
    finish
fi
if ! fetch >"$out" 2>&1; then
    if grep -qi 'hash' "$out"; then
        ok "UCX $version has its hash" 1
    else
        skip "UCX $version" "$(tail -n 1 "$out")"
    fi
    finish
fi

check "its headers, as C11" gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -isystem "$ucx/include" \
    -Iinclude dcomm.c

export LD_LIBRARY_PATH=$ucx/lib DCOMM_TEST_UCX=$version
# suite NAME FILTER: the tests of a suite, of which at least one must run.
suite() {
    expect "$1/$2" 0 '^ok .*s\)$' tests/lib/suite.sh "$build/tests/test_$1" --filter "$1/$2"
}
suite ucx_deaths version
if full; then
    suite ucx_deaths '*_connection*'
    suite survivors '*'
    suite faults '*'
    suite liveness '*'
else
    suite ucx_deaths one_connection
    suite survivors one_dies_net
    suite faults 'leaves*_net'
fi
finish
