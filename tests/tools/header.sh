#!/usr/bin/env bash
# header.sh BUILD - the generated header as its users meet it: languages, compilers, linking,
# names, installation. The everyday run takes the first and the last language standard, objects that the
# build directory has, and else syntax alone; with --full every compiler compiles everything in every
# standard.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
. tests/lib/lib_cuda.sh
build=${1:-build}
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Werror)
cxx_warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)
libraries=(-lucp -lucs -luct -lhwloc -lm -lpthread -ldl)
compilers=()
for cc in gcc clang; do
    command -v $cc >/dev/null && compilers+=($cc) || skip "$cc" "not installed"
done
standards=(c99 c2x)
cxx_standards=(c++98 c++2b)
! full || standards+=(c11 c17 gnu17) cxx_standards+=(c++11 c++17 c++20)
cxx_of() {
    case $1 in gcc) echo g++ ;; *) echo clang++ ;; esac
}

# each_compiler FUNCTION: all compilers at once; what they say is in their order.
each_compiler() {
    local cc started=()
    for cc in "${compilers[@]}"; do
        (out=$scratch/out.$cc && bad=0 && "$1" $cc >"$scratch/tap.$cc" && exit $((bad > 0))) &
        started+=($!)
    done
    for cc in "${compilers[@]}"; do
        wait "${started[0]}" || bad=$((bad + 1))
        started=("${started[@]:1}")
        cat "$scratch/tap.$cc"
    done
}

# ---- declarations ----
echo '#include "dcomm.h"' >"$scratch/declare.c"
cp "$scratch/declare.c" "$scratch/declare.cpp"
for cc in "${compilers[@]}"; do
    for std in "${standards[@]}"; do
        check "declarations: $cc -std=$std" $cc -std=$std "${warnings[@]}" -I include \
            -fsyntax-only "$scratch/declare.c"
    done
    for std in "${cxx_standards[@]}"; do
        check "declarations: $(cxx_of $cc) -std=$std" "$(cxx_of $cc)" -std=$std \
            "${cxx_warnings[@]}" -I include -fsyntax-only "$scratch/declare.cpp"
    done
done
# tests/kernels/cuda.sh compiles the kernels for every architecture; here the header alone.
if [ -n "$nvcc" ]; then
    cp "$scratch/declare.c" "$scratch/declare.cu"
    (echo '#define DCOMM_CUDA_IMPLEMENTATION' && cat "$scratch/declare.c") >"$scratch/kernels.cu"
    (echo '#define DCOMM_NO_COMM' && cat "$scratch/kernels.cu") >"$scratch/kernels_alone.cu"
    for f in declare $(full && echo kernels kernels_alone); do
        check "nvcc: $f" "$nvcc" "${nvcc_warnings[@]}" -I include -cuda -o "$scratch/$f.ii" \
            "$scratch/$f.cu"
    done
else
    skip "nvcc: declarations and kernels" "not installed"
fi
few_includes() {
    gcc -M -I include "$scratch/declare.c" >"$scratch/deps" && cat "$scratch/deps" &&
        ! grep -qE '/(ucp|uct|ucs|hwloc|pthread|stdio)' "$scratch/deps"
}
check "declarations need neither UCX nor hwloc nor stdio" few_includes
public_macros() {
    gcc -dM -E -I include "$scratch/declare.c" | cut -d' ' -f2 | sed 's/(.*//' | sort >"$scratch/with"
    printf '#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n' >"$scratch/none.c"
    gcc -dM -E "$scratch/none.c" | cut -d' ' -f2 | sed 's/(.*//' | sort >"$scratch/without"
    ! comm -23 "$scratch/with" "$scratch/without" | grep -v '^DCOMM_'
}
check "declarations define only macros in DCOMM_" public_macros

# ---- renamed functions: CHANGELOG.md's table has the old name and the new one of each ----
sed -nE 's/^\| `(dcomm_[a-z0-9_]+)` \| `(dcomm_[a-z0-9_]+)` .*/\1 \2/p' CHANGELOG.md >"$scratch/renamed"
names_file() { # NAME...: a file that names these functions
    printf '#include "dcomm.h"\ntypedef void (*any)(void);\nextern const any names[];\nconst any names[] = {\n'
    printf '    (any)%s,\n' "$@"
    printf '};\n'
}
# shellcheck disable=SC2046
names_file $(tr ' ' '\n' <"$scratch/renamed" | sort -u) >"$scratch/names.c"
cp "$scratch/names.c" "$scratch/names.cpp"
for cc in "${compilers[@]}"; do
    check "old and new names: $cc -std=c99" $cc -std=c99 "${warnings[@]}" -I include -fsyntax-only "$scratch/names.c"
    check "old and new names: $(cxx_of $cc) -std=c++98" "$(cxx_of $cc)" -std=c++98 "${cxx_warnings[@]}" \
        -I include -fsyntax-only "$scratch/names.cpp"
done
no_old_names() {
    [ "$(wc -l <"$scratch/renamed")" -gt 10 ] || return 1
    gcc -E -P -DDCOMM_NO_OLD_NAMES -I include "$scratch/declare.c" >"$scratch/no_old_names.i" || return 1
    cut -d' ' -f2 "$scratch/renamed" | while read -r name; do
        grep -qw "$name" "$scratch/no_old_names.i" || echo "$name is not declared"
    done >"$scratch/missing"
    cat "$scratch/missing"
    [ ! -s "$scratch/missing" ] || return 1
    cut -d' ' -f1 "$scratch/renamed" >"$scratch/old_names"
    ! grep -wFf "$scratch/old_names" "$scratch/no_old_names.i"
}
check "DCOMM_NO_OLD_NAMES leaves old names out, and new ones in" no_old_names
pages_are_new() {
    ! grep -rnwFf "$scratch/old_names" README.md docs examples bench tools
}
check "pages and programs use no old name" pages_are_new

# ---- the implementation ----
printf '#define DCOMM_IMPLEMENTATION\n#include "dcomm.h"\n' >"$scratch/impl.c"
printf '#include "dcomm.h"\n' | cat "$scratch/impl.c" - >"$scratch/impl_first.c"
printf '#define _GNU_SOURCE\n#include <math.h>\n#include "dcomm.h"\n' | cat - "$scratch/impl.c" \
    >"$scratch/impl_last.c"
printf '#define DCOMM_NO_COMM\n' | tee "$scratch/alone.c" | cat - "$scratch/declare.c" >"$scratch/declare_alone.c"
cat "$scratch/impl.c" >>"$scratch/alone.c"
cp "$scratch/declare_alone.c" "$scratch/declare_alone.cpp"
# gcc's optimised code has warnings of its own, which the build directory's library had; nor has each
# standard others.
implementations() {
    local cc=$1
    if full; then
        check "implementation: $cc -std=c11" $cc -std=c11 "${warnings[@]}" -I include \
            -c -o "$scratch/impl.$cc.o" "$scratch/impl.c"
        check "codecs alone: implementation: $cc -std=c11 -O2" $cc -std=c11 -O2 "${warnings[@]}" \
            -I include -c -o "$scratch/alone.$cc.o" "$scratch/alone.c"
    elif [ $cc = gcc ]; then
        check "implementation: gcc, as it was built" cp "$build/libdcomm_one.a.p/dcomm.c.o" "$scratch/impl.gcc.o"
        check "codecs alone: implementation: gcc -std=c11, loops as they were built" gcc -std=c11 \
            "${warnings[@]}" -Wno-unused-function -DDCOMMI_CODEC_KERNELS=extern -I include \
            -c -o "$scratch/alone.gcc.o" "$scratch/alone.c"
        check "codecs alone: warnings of gcc" gcc -std=c11 "${warnings[@]}" -I include -fsyntax-only \
            "$scratch/alone.c"
    else
        check "implementation: $cc -std=c11" $cc -std=c11 "${warnings[@]}" -I include -fsyntax-only \
            "$scratch/impl.c"
        check "codecs alone: implementation: $cc -std=c11" $cc -std=c11 "${warnings[@]}" -I include \
            -fsyntax-only "$scratch/alone.c"
    fi
    check "codecs alone: declarations: $cc -std=c11" $cc -std=c11 "${warnings[@]}" -I include \
        -fsyntax-only "$scratch/declare_alone.c"
    check "codecs alone: declarations: $(cxx_of $cc) -std=c++17" "$(cxx_of $cc)" -std=c++17 \
        "${cxx_warnings[@]}" -I include -fsyntax-only "$scratch/declare_alone.cpp"
    full || return 0
    check "implementation: $cc -std=gnu17" $cc -std=gnu17 "${warnings[@]}" -I include \
        -fsyntax-only "$scratch/impl.c"
    check "codecs alone: implementation: $cc -std=gnu17" $cc -std=gnu17 "${warnings[@]}" \
        -I include -fsyntax-only "$scratch/alone.c"
    check "codecs alone: declarations: $(cxx_of $cc) -std=c++20" "$(cxx_of $cc)" -std=c++20 \
        "${cxx_warnings[@]}" -I include -fsyntax-only "$scratch/declare_alone.cpp"
}
each_compiler implementations
alone_needs() {
    gcc -M -I include "$scratch/alone.c" >"$scratch/deps" && cat "$scratch/deps" &&
        ! grep -qE '/(ucp|uct|ucs|hwloc)' "$scratch/deps"
}
check "codecs alone need neither UCX nor hwloc" alone_needs
check "implementation, then declarations" gcc -std=c11 "${warnings[@]}" -I include \
    -fsyntax-only "$scratch/impl_first.c"
check "declarations, then implementation" gcc -std=c11 "${warnings[@]}" -I include \
    -fsyntax-only "$scratch/impl_last.c"
# The compilers whose object there is: it takes most of the time to make code.
object_compilers=(gcc)
! full || object_compilers=("${compilers[@]}")
loops=() # the codecs' loops, which objects of the everyday run lack
full || loops=("$build/libcodec_kernels.a")
own_names() {
    nm -g --defined-only "$scratch/impl.$1.o" | awk '{print $3}' >"$scratch/names" &&
        ! grep -v '^dcomm_' "$scratch/names"
}
for cc in "${object_compilers[@]}"; do
    check "global symbols begin with dcomm_: $cc" own_names $cc
done
no_cuda() { # neither at compile time, nor at run time
    gcc -M -I include "$scratch/impl.c" >"$scratch/deps" && cat "$scratch/deps" &&
        ! grep -qi cuda "$scratch/deps" &&
        ! nm "$scratch/impl.$1.o" | grep -E ' (cu[A-Z]|cuda|__cuda|nv)' &&
        ! strings -a "$scratch/impl.$1.o" | grep -E 'lib(cuda|nv)'
}
for cc in "${object_compilers[@]}"; do
    check "without DCOMM_WITH_CUDA nothing of CUDA is needed: $cc" no_cuda $cc
done
# What a program leaves out. clang finds unused functions without making code; gcc with --full, where all is
# left out, and where tests/comm/test_bare.c has its library compiled.
leaves=(UCX HWLOC TRAIN CHECK)
less_implementations() {
    local cc=$1 what make=(-fsyntax-only)
    if full; then
        make=(-c -o "$scratch/least.$cc.o")
    elif [ $cc = gcc ]; then # the codecs' loops are those that the build directory has
        make=(-c -o "$scratch/least.$cc.o" -Wno-unused-function -DDCOMMI_CODEC_KERNELS=extern)
    fi
    if [ $cc = gcc ] || full; then
        for what in "${leaves[@]}"; do
            check "without $what: implementation: $cc" $cc -std=c11 "${warnings[@]}" -DDCOMM_NO_$what \
                -I include -fsyntax-only "$scratch/impl.c"
        done
    fi
    check "without all of it: implementation: $cc" $cc -std=c11 "${warnings[@]}" \
        "${leaves[@]/#/-DDCOMM_NO_}" -I include "${make[@]}" "$scratch/impl.c"
    check "without all of it: declarations: $(cxx_of $cc)" "$(cxx_of $cc)" -std=c++17 \
        "${cxx_warnings[@]}" "${leaves[@]/#/-DDCOMM_NO_}" -I include -fsyntax-only "$scratch/declare.cpp"
}
each_compiler less_implementations
bare_needs() {
    gcc -M -DDCOMM_NO_UCX -DDCOMM_NO_HWLOC -I include "$scratch/impl.c" >"$scratch/deps" &&
        cat "$scratch/deps" && ! grep -qE '/(ucp|uct|ucs|hwloc)' "$scratch/deps"
}
check "without UCX and HWLOC: neither's headers are needed" bare_needs
no_function() { # WHAT FUNCTION
    printf '#include "dcomm.h"\nvoid *use(void);\nvoid *use(void)\n{\n    return (void *)%s;\n}\n' "$2" \
        >"$scratch/left_out.c"
    gcc -I include -fsyntax-only "$scratch/left_out.c" &&
        ! gcc "-DDCOMM_NO_$1" -I include -fsyntax-only "$scratch/left_out.c"
}
check "without CHECK: no dcomm_plan_check" no_function CHECK dcomm_plan_check
check "without TRAIN: no dcomm_buckets_wait" no_function TRAIN dcomm_buckets_wait
# Words that a program may take for functions of its own: none of them may be called by dcomm, because
# the linker would bind the call to the program's.
plain_names=(accept access alarm bind chdir clock close connect creat dup dup2 fork fstat getrandom
    index kill link listen lockf lseek lstat mkdir nice open pause pipe poll pread pwrite raise rand
    random read readv recv recvfrom recvmsg remove rename rindex rmdir select send sendmsg sendto
    shutdown signal sleep socket socketpair stat sync time truncate unlink usleep wait waitpid write
    writev acos asin atan atan2 cbrt ceil ceilf copysign copysignf cos cosh drem erf exp exp10 exp2 expf
    fabs fabsf fdim floor floorf fma fmax fmaxf fmin fminf fmod frexp gamma hypot hypotf ilogb j0 j1 jn
    ldexp ldexpf lgamma log log10 log2 logb logf lrint lround modf nearbyint pow powf remainder rint
    rintf round roundf scalb scalbn significand sin sinh sqrt sqrtf tan tanh tgamma trunc truncf y0 y1
    yn)
printf '%s\n' "${plain_names[@]}" | sort >"$scratch/plain_names"
calls_no_plain_name() {
    nm -u "$1" | awk '{print $2}' | sed 's/@.*//' | sort >"$scratch/called.$2"
    grep -qx memcpy "$scratch/called.$2" || return 1
    comm -12 "$scratch/plain_names" "$scratch/called.$2" >"$scratch/plain.$2"
    cat "$scratch/plain.$2"
    [ ! -s "$scratch/plain.$2" ]
}
for cc in "${object_compilers[@]}"; do
    check "calls nothing by a plain name: $cc" calls_no_plain_name "$scratch/impl.$cc.o" $cc
    check "codecs alone: call nothing by a plain name: $cc" calls_no_plain_name \
        "$scratch/alone.$cc.o" $cc
done

private_macros() { # include guards stay, so that the header can be included again
    gcc -dM -E -I include "$scratch/impl.c" | cut -d' ' -f2 | grep '^DCOMMI_' | sed 's/(.*//' >"$scratch/left"
    ! grep -vE '^DCOMMI_[A-Z0-9_]+_H$' "$scratch/left"
}
check "helper macros are undefined at the end" private_macros

# refused PATTERN COMMAND...: by one error that matches, and no other, though the file goes on to use dcomm.
refused() {
    local pattern=$1
    shift
    ! LC_ALL=C "$@" -Wall -Wextra -I include -fsyntax-only >"$scratch/refusal" 2>&1
    cat "$scratch/refusal"
    [ "$(grep -cE '(error|warning):' "$scratch/refusal")" -eq 1 ] &&
        grep -qE "error: .*$pattern" "$scratch/refusal"
}
printf 'int main(void)\n{\n    return dcomm_version() == 0;\n}\n' | cat "$scratch/impl.c" - >"$scratch/used.c"
cp "$scratch/used.c" "$scratch/used.cpp"
sed 's/^#define DCOMM/#define DCOMM_CUDA/' "$scratch/used.c" >"$scratch/cuda_in_c.c"
printf '#include <stdio.h>\n' | cat - "$scratch/used.c" >"$scratch/no_gnu.c"
for cc in "${compilers[@]}"; do
    check "kernels refused as C: $cc" refused "is CUDA C" $cc -std=c11 "$scratch/cuda_in_c.c"
    check "refused as C++: $cc" refused "compile dcomm.c" "$(cxx_of $cc)" "$scratch/used.cpp"
    check "refused behind a system header: $cc" refused "include dcomm.h first in this file.*-D_GNU_SOURCE" \
        $cc -std=c11 "$scratch/no_gnu.c"
    for option in -Ofast -ffast-math -ffinite-math-only; do
        check "refused with $option: $cc" refused "-fno-fast-math" $cc $option "$scratch/used.c"
    done
    check "not with -Ofast -fno-fast-math: $cc" $cc -Ofast -fno-fast-math -w -I include -E \
        -o "$scratch/used.i" "$scratch/used.c" # #error stops the preprocessor
done

# ---- programs ----
cat >"$scratch/one.c" <<'END'
#include "dcomm.h"
const char *one(void);
const char *one(void)
{
    return dcomm_version();
}
END
sed 's/one/two/' "$scratch/one.c" >"$scratch/two.c"
cat >"$scratch/main.cpp" <<'END'
#include "dcomm.h"
#include <cstring>
extern "C" const char *one(void);
extern "C" const char *two(void);
int main()
{
    dcomm_comm *none = nullptr;
    return std::strcmp(one(), DCOMM_VERSION_STRING) != 0 || one() != two() ||
           dcomm_comm_destroy(&none) != DCOMM_OK || DCOMM_IN_PLACE == nullptr;
}
END
cat >"$scratch/main.c" <<'END'
#include "dcomm.h"
#include <string.h>
int main(void)
{
    dcomm_comm *none = NULL;
    return strcmp(dcomm_version(), DCOMM_VERSION_STRING) != 0 || dcomm_comm_destroy(&none) != DCOMM_OK;
}
END
four_files() {
    local cc=$1 cxx f
    cxx=$(cxx_of "$cc")
    for f in one two; do
        $cc -std=c11 "${warnings[@]}" -I include -c -o "$scratch/$f.o" "$scratch/$f.c" || return 1
    done
    $cxx -std=c++17 "${cxx_warnings[@]}" -I include -c -o "$scratch/main.o" "$scratch/main.cpp" &&
        $cxx -o "$scratch/four" "$scratch"/{main,one,two}.o "$scratch/impl.$cc.o" "${libraries[@]}" &&
        "$scratch/four"
}
installed() {
    DESTDIR=$scratch/root meson install -C "$build" --no-rebuild --quiet || return 1
    (cd "$scratch/root" && find . -type f | sort) | tee "$scratch/files"
    [ "$(grep -v '/share/\(man\|doc\)/' "$scratch/files" | sed 's|.*/||' | grep -v '^dcomm-' | sort | tr '\n' ' ')" = \
        "LICENSE dcomm.h dcomm.pc dcomm_nccl.h " ] || return 1
    for page in share/man/man3/dcomm.3 share/man/man1/dcomm-run.1 share/doc/dcomm/index.html; do
        grep -q "/$page$" "$scratch/files" || { echo "no $page"; return 1; }
    done
    for tool in codec crossover moe overlap perf plan run topo; do
        [ -x "$(find "$scratch/root" -path "*/bin/dcomm-$tool")" ] || { echo "no dcomm-$tool"; return 1; }
    done
    "$(find "$scratch/root" -path "*/bin/dcomm-run")" --help
}
only_installed() { # what `meson install` compiles first is what is built by default
    meson introspect --targets "$build" >"$scratch/targets.json" && python3 - "$scratch/targets.json" <<'END'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    targets = [t for t in json.load(file) if t["build_by_default"]]
left = [t["name"] for t in targets if not t["installed"]]
print("built by default and not installed:", *left)
sys.exit(1 if left or not targets else 0)
END
}
with_pkg_config() {
    local pc prefix flags
    pc=$(find "$scratch/root" -name dcomm.pc)
    prefix=$(dirname "$(dirname "$(find "$scratch/root" -name dcomm.h)")")
    flags=$(PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$prefix" \
        --cflags --libs dcomm) || return 1
    echo "$flags"
    # shellcheck disable=SC2086
    gcc -fsyntax-only "$scratch/impl.c" $flags &&
        gcc -o "$scratch/installed" "$scratch/main.c" "$scratch/impl.gcc.o" $flags && "$scratch/installed"
}
# In the everyday run the implementation is not compiled: it is the object of the build directory.
object_cc=gcc
if ! full; then
    object_cc=$scratch/cc
    cat >"$object_cc" <<END
#!/bin/sh
output= implementation= last=
for word; do
    [ "\$last" != -o ] || output=\$word
    case \$word in */dcomm.c | */impl.c) implementation=1 ;; esac
    last=\$word
done
[ -z "\$implementation" ] || exec cp "$(realpath "$build")/libdcomm_one.a.p/dcomm.c.o" "\$output"
exec gcc "\$@"
END
    chmod +x "$object_cc"
fi
subproject() {
    local dir=$scratch/user
    mkdir -p "$dir/subprojects/dcomm"
    cp -r meson.build meson_options.txt LICENSE dcomm.c include tests bench examples "$dir/subprojects/dcomm/" &&
        cp "$scratch"/{impl.c,main.c,main.cpp,one.c,two.c} "$dir/" || return 1
    cat >"$dir/meson.build" <<'END'
project('user', 'c', 'cpp')
dcomm = dependency('dcomm', fallback: 'dcomm')
executable('own', 'main.c', 'impl.c', dependencies: dcomm)
dcomm_static = dependency('dcomm-static', fallback: 'dcomm')
executable('static', 'main.cpp', 'one.c', 'two.c', dependencies: dcomm_static)
END
    CC=$object_cc meson setup "$dir/build" "$dir" --buildtype=debug && ninja -C "$dir/build" &&
        "$dir/build/own" && "$dir/build/static" &&
        [ ! -e "$dir/build/subprojects/dcomm/dcomm-run" ]
}
cat >"$scratch/codec.c" <<'END'
#define DCOMM_NO_COMM
#include "dcomm.h"
int main(void)
{
    dcomm_codec *codec = NULL;
    float x[3] = {1, 2, 3}, y[3] = {0};
    unsigned char wire[16];
    size_t bytes = 0;
    return dcomm_codec_create("bf16", &codec) != DCOMM_OK ||
           dcomm_encode(codec, x, 3, NULL, wire, sizeof wire, &bytes, NULL, NULL) != DCOMM_OK ||
           dcomm_decode(codec, wire, bytes, y, 3) != DCOMM_OK || y[2] != 3 ||
           dcomm_codec_destroy(&codec) != DCOMM_OK;
}
END
codecs_alone() {
    $1 -std=c11 "${warnings[@]}" -I include -o "$scratch/codec" "$scratch/codec.c" \
        "$scratch/alone.$1.o" "${loops[@]}" -lm && "$scratch/codec"
}
for cc in "${object_compilers[@]}"; do
    check "a program with codecs alone links -lm alone: $cc" codecs_alone $cc
done
cat >"$scratch/sum.c" <<'END'
#include "dcomm.h"
#include <stdio.h>
int main(void)
{
    dcomm_comm *comm = NULL;
    float x[2] = {1, 2};
    if (dcomm_comm_create(NULL, &comm) < 0 ||
        dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 2, DCOMM_F32, DCOMM_SUM, NULL) < 0) {
        fprintf(stderr, "%s\n", dcomm_last_error());
        return 2;
    }
    return x[0] != 4 || x[1] != 8 || dcomm_comm_destroy(&comm) < 0;
}
END
least_runs() {
    $1 -std=c11 "${warnings[@]}" -I include -o "$scratch/sum" "$scratch/sum.c" "$scratch/least.$1.o" \
        "${loops[@]}" -lm -lpthread -ldl && ldd "$scratch/sum" &&
        ! ldd "$scratch/sum" | grep -qE 'lib(uc[pst]|hwloc)' &&
        "$build/dcomm-run" -n 4 -- "$scratch/sum"
}
for cc in "${compilers[@]}"; do
    [ ! -f "$scratch/least.$cc.o" ] ||
        check "without all of it: a program links neither UCX nor hwloc, and runs: $cc" least_runs $cc
done
# Functions of these names, each of which ends the program. Those that are hidden take the place of the C
# library's for dcomm alone; others take it for UCX and hwloc as well, which call nothing of send and recv
# on one host.
define_names() { # ATTRIBUTE NAME...
    local name
    printf '#include <stdio.h>\n#include <stdlib.h>\n'
    printf '_Noreturn static void called(const char *name)\n{\n'
    printf '    fprintf(stderr, "the program has %%s called\\n", name);\n    abort();\n}\n'
    for name in "${@:2}"; do
        printf '%s void own_%s(void) __asm__("%s");\n' "$1" "$name" "$name"
        printf 'void own_%s(void)\n{\n    called("%s");\n}\n' "$name" "$name"
    done
}
define_names '__attribute__((visibility("hidden")))' "${plain_names[@]}" >"$scratch/hidden_names.c"
define_names '' send recv >"$scratch/own_names.c"
link_names() { # NAMES
    gcc -std=c11 "${warnings[@]}" -I include -o "$scratch/$1" "$scratch/$1.c" \
        tests/tools/plain_names.c "$scratch/impl.gcc.o" "${libraries[@]}"
}
names_run() { # NAMES COMMAND...
    rm -rf "$scratch/kept"
    mkdir "$scratch/kept"
    DCOMM_TUNE_CACHE=$scratch/kept/cache DCOMM_IFACE=lo DCOMM_WARN_UNBOUND=0 timeout 120 \
        "$build/dcomm-run" -n 2 -- "${@:2}" "$scratch/$1" "$scratch/kept" &&
        [ -s "$scratch/kept/tuning.0" ] && [ -s "$scratch/kept/tuning.1" ]
}
check "a program with functions of plain names links" link_names hidden_names
check "functions of plain names: ranks on one host" names_run hidden_names
check "functions of plain names: ranks that talk by TCP" names_run hidden_names \
    sh -c 'DCOMM_HOSTID=host$RANK exec "$@"' sh
check "a program with functions send and recv links" link_names own_names
check "functions send and recv: ranks on one host" names_run own_names
names_told() { # UCX fails, but not without a word
    ! names_run own_names sh -c 'DCOMM_HOSTID=host$RANK exec "$@"' sh >"$scratch/told" 2>&1
    cat "$scratch/told"
    grep -q 'this program defines recv, send: UCX' "$scratch/told"
}
check "functions send and recv: ranks that talk by TCP are told" names_told
check "meson install ships headers, tools, licence and dcomm.pc" installed
check "meson install compiles nothing else" only_installed
for cc in "${object_compilers[@]}"; do
    check "three C files and a C++ file in one program: $cc" four_files $cc
done
check "a program built with pkg-config" with_pkg_config
check "a meson project with dcomm as subproject" subproject
finish
