#!/usr/bin/env bash
# test_docs.sh BUILD - every block of README.md, CONTRIBUTING.md and docs/: C is compiled, as a program or as
# the body of a function behind docs_context.h; commands are run, with less to do where they take long;
# README's three projects are built and started. A comment before a block may say why it cannot be tested, or
# which other script does it.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=$(realpath "${1:-build}")
root=$PWD
export DCOMM_TUNE=0 # to measure what things cost takes longer than what is tested
mkdir "$scratch/blocks" "$scratch/user"
warnings=(-Wall -Wextra -Wno-unused -Wno-unused-result -Werror)
mpi=(-I/nowhere) # only to be read, with Open MPI's header
read -ra mpi <<<"$(pkg-config --cflags ompi-c 2>/dev/null)"

# ---- C ----
program() { # PAGE FILE: a whole one. One with the implementation in it is run by a command that follows.
    local arguments=(-std=c11 "${warnings[@]}" -I include -I examples)
    if grep -q DCOMM_IMPLEMENTATION "$2"; then
        gcc "${arguments[@]}" -fsyntax-only "$2"
    else
        gcc "${arguments[@]}" -O0 -o "$scratch/one" "$2" "$build/libdcomm_one.a" -lucp -lucs -luct -lhwloc \
            -lm -lpthread -ldl && "$build/dcomm-run" -n 2 --timeout 60 -- "$scratch/one"
    fi
}
fragment() { # PAGE FILE
    local source=$scratch/fragment.c include=()
    if grep -q MPI_ "$2"; then
        include=("${mpi[@]}" -include mpi.h)
    fi
    {
        printf '#include "docs_context.h"\nvoid fragment(void);\nvoid fragment(void)\n{\n'
        # Omissions, launches of the program's own kernels, and functions, which nest in gcc's C.
        sed -e '/^\.\.\.$/d' -e 's/<<<[^>]*>>>//' -e 's/^static \(int\|void\)/\1/' "$2"
        echo '}'
    } >"$source"
    gcc -std=gnu11 "${warnings[@]}" -I include -I tests/tools "${include[@]}" -fsyntax-only "$source"
}

# ---- commands ----
# options COMMAND...: what takes minutes is not run; it exists, and its --help names the options.
options() {
    local help word
    help=$("$1" --help) || return 1
    for word in "${@:2}"; do
        [ "$word" != -- ] || return 0
        [[ $word != --* ]] || grep -q -e "$word" <<<"$help" || { echo "$1 --help has no $word"; return 1; }
    done
}
# less COMMAND: the same with less to do, where it would take long. What builds only names what there is.
less() {
    case $1 in
    "meson setup build"*) echo "meson introspect --targets build" ;;
    "meson test "*) echo "meson test --no-rebuild --list ${1#meson test }" ;;
    "ninja -C build") echo "$1 -t query all" ;;
    "ninja -C build "*) echo "ninja -C build -t query ${1#ninja -C build}" ;;
    build/tests/*) echo "ninja -C build -t query ${1#build/}" | sed 's/ --filter .*//' ;;
    *dcomm-perf*) echo "${1/ mine / ring } -e 4K -n 2 -w 0" ;;
    *dcomm-crossover*--model*) echo "$1" ;;
    *dcomm-crossover*) echo "$1 -b 1K -e 2K -i 2" ;;
    *dcomm-overlap*) echo "$1 --bytes 1M --steps 2 --backward-ms 1" ;;
    *dcomm-ps*) echo "$1 --bytes 64K --steps 2" ;;
    *dcomm-moe*) echo "$1 --tokens 64 --hidden 64 --steps 2 --rotate 0" ;;
    "cc "*" program.c "*)
        # The implementation's syntax. Its object is the build directory's; header.sh links less of it.
        if full; then
            echo "${1/ -O2 / -O0 }"
        else
            echo "${1/ -O2 / -fsyntax-only } && sed '/define DCOMM_IMPLEMENTATION/d' program.c >user.c &&" \
                "cc -O0 -Iinclude user.c -o program build/libdcomm_one.a -lucp -lucs -luct -lhwloc" \
                "-lm -lpthread -ldl"
        fi
        ;;
    *examples/trainer*) echo "$1 --steps 20 --batch 4 --seq 16 --dim 16 --sample 0" ;;
    *)
        sed -e 's/ mine / ring /' -e 's/laplace:n=1M/laplace:n=10K/' -e 's/ -O2 / -O0 /' \
            -e 's/-n N -- PROGRAM/-n 2 -- .\/program/' -e 's/ -c dcomm.c/ -fsyntax-only dcomm.c/' <<<"$1"
        ;;
    esac
}
command_line() ( # in a folder where dcomm's are, and what else the commands name
    cd "$scratch/user" || exit
    read -ra words <<<"$1"
    case $1 in
    tools/* | bench/*) options "${words[@]}" ;;
    *) eval "timeout 120 $(less "$1")" ;;
    esac
)
commands() { # PAGE FILE
    local line name
    while read -r line; do
        line=$(sed 's/  *# .*//' <<<"$line")
        name="$1: $line"
        case $line in
        "") ;;
        *DCOMM_WITH_CUDA*)
            if [ -d /usr/local/cuda/include ]; then
                check "$name" command_line "$line"
            else
                skip "$name" "no CUDA"
            fi
            ;;
        *) check "$name" command_line "$line" ;;
        esac
    done <"$2"
}
for f in build bench tools include examples dcomm.c include/dcomm.h; do
    ln -s "$root/$f" "$scratch/user/"
done
ln -sfn "$build" "$scratch/user/build"
ln -s "$build/dcomm-run" "$scratch/user/"
PATH=$PATH:$build
cp tests/data/topo/server.xml "$scratch/user/"
cp tests/data/gradients/rank0.npy "$scratch/user/grad.npy"
awk '/^```c$/ {on = 1; next} /^```$/ && on {exit} on' README.md >"$scratch/user/program.c"

# ---- README's three projects ----
# Their compiler takes dcomm.c's object from the build directory: header.sh compiles it with their flags.
cat >"$scratch/cc" <<END
#!/bin/sh
output= implementation= last=
for word; do
    [ "\$last" != -o ] || output=\$word
    case \$word in */dcomm.c | dcomm.c) implementation=1 ;; esac
    last=\$word
done
[ -z "\$implementation" ] || exec cp "$build/libdcomm_one.a.p/dcomm.c.o" "\$output"
exec gcc "\$@"
END
chmod +x "$scratch/cc"
project() { # KIND FILE: the block as its file, beside what it names
    local dir=$scratch/project.$1
    mkdir "$dir" && cp include/dcomm.h dcomm.c examples/comm.h "$scratch/train.c" "$dir" || return
    case $1 in
    make) cp "$2" "$dir/Makefile" && make -C "$dir" CC="$scratch/cc" ;;
    cmake) cp "$2" "$dir/CMakeLists.txt" && CC=$scratch/cc cmake -S "$dir" -B "$dir" && cmake --build "$dir" ;;
    meson)
        mkdir "$dir/subprojects" && cp "$2" "$dir/meson.build" && ln -s "$root" "$dir/subprojects/dcomm" &&
            rm "$dir/dcomm.h" && CC=$scratch/cc meson setup "$dir/build" "$dir" --buildtype=debug &&
            ninja -C "$dir/build" && ln -s build/train "$dir/train"
        ;;
    esac && (cd "$dir" && dcomm-run -n 4 --timeout 60 -- ./train >said; cat said
        [ "$(grep -c '^rank . of 4$' said)" = 4 ])
}

while IFS=$'\t' read -r at language file; do
    case $language in
    skip) skip "$at" "$file" ;;
    by) check "$at: $file tests it" test -x "$file" ;;
    c)
        if ! grep -q '#include' "$file"; then
            if grep -q MPI_ "$file" && [ ${#mpi[@]} -eq 0 ]; then
                skip "$at" "no MPI"
            else
                check "$at: a fragment in C" fragment "$at" "$file"
            fi
        else
            check "$at: a program in C" program "$at" "$file"
            ! grep -q comm.h "$file" || cp "$file" "$scratch/train.c"
        fi
        ;;
    sh) commands "$at" "$file" ;;
    ini)
        expect "$at: a tuning file" 0 us env DCOMM_TUNE_FILE="$file" "$build/dcomm-topo" -n 4 \
            --explain allreduce 1M --mem cuda
        ;;
    make | cmake | meson)
        if command -v "$language" >/dev/null; then
            check "$at: a project with $language" project "$language" "$file"
        else
            skip "$at: a project with $language" "not installed"
        fi
        ;;
    text) ;; # drawings
    *) ok "$at: nothing tests a block of $language" 1 ;;
    esac
done < <(tools/docs_blocks.py "$scratch/blocks" README.md CONTRIBUTING.md docs/*.md)

# What quickstart.sh builds, and `meson install` brings.
tools() {
    local tool
    meson introspect --targets "$build" >"$scratch/targets.json" || return
    for tool in $(grep -o '^| `build/dcomm-[a-z]*' README.md | sed 's|.*/||'); do
        python3 -c 'import json, sys
assert any(t["name"] == sys.argv[2] and t["build_by_default"] for t in json.load(open(sys.argv[1])))' \
            "$scratch/targets.json" "$tool" || return
    done
    grep -q 'ninja -C build all' tools/quickstart.sh
}
check "every tool of README's table is built by default" tools

# A machine without UCX and hwloc: meson says what to do, and builds without them.
printf "[binaries]\npkgconfig = 'false'\ncmake = 'false'\n" >"$scratch/none.ini"
expect "without UCX: meson says what to do" 1 "ucx is not installed: .* set -Ducx=disabled to build without it" \
    meson setup "$scratch/none" --native-file "$scratch/none.ini"
bare() {
    local dir=$scratch/bare
    meson setup "$dir" --native-file "$scratch/none.ini" -Ducx=disabled -Dhwloc=disabled || return
    grep '^' "$dir/meson-private/dcomm.pc"
    grep 'Idcomm-perf.p.* -DDCOMM_NO_UCX -DDCOMM_NO_HWLOC' "$dir/compile_commands.json" &&
        grep -q '^Cflags:.* -DDCOMM_NO_UCX -DDCOMM_NO_HWLOC' "$dir/meson-private/dcomm.pc" &&
        ! grep -qE 'lucp|hwloc$' "$dir/meson-private/dcomm.pc"
}
check "with -Ducx=disabled and -Dhwloc=disabled it needs neither" bare
finish
