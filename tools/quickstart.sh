#!/usr/bin/env bash
# quickstart.sh - from a fresh machine to the main job: installs what is missing, builds every tool, trains
# a small model on real text with local ranks, once exactly and once with each of several codecs,
# measures the all-reduce algorithms, writes a report.
#
#   tools/quickstart.sh [--ranks N] [--steps N] [--text PATH]
#
# --ranks (default 4), --steps of training (default 250), --text file or directory to train on
# (default: the licence texts that Debian carries). The report is build/report.html.
set -eu
cd "$(dirname "$0")/.."

ranks=4
steps=250
text=()
while [ $# -gt 0 ]; do
    case $1 in
    --ranks | --steps | --text)
        [ $# -gt 1 ] || { echo "quickstart.sh: $1 needs a value" >&2; exit 2; }
        case $1 in
        --ranks) ranks=$2 ;;
        --steps) steps=$2 ;;
        --text) text=(--text "$2") ;;
        esac
        shift
        ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    esac
    shift
done

. tools/configurations.sh

stage=0
stages=$((${#configurations[@]} + 4))
say() {
    stage=$((stage + 1))
    printf '\n== %d of %d, after %d:%02d: %s\n' $stage $stages $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

# busy: of the cores that this process may use, how many others use now, if that is half a one or more.
busy() {
    python3 - <<'END'
import os, time

cores = os.sched_getaffinity(0)

def ticks():
    busy = 0
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            name, *fields = line.split()
            if name[3:].isdigit() and name.startswith("cpu") and int(name[3:]) in cores:
                values = [int(f) for f in fields[:8]]
                busy += sum(values) - values[3] - values[4]  # all but idle and waiting for a disk
    return busy

before = ticks()
time.sleep(1)
used = (ticks() - before) / os.sysconf("SC_CLK_TCK")
if used >= 0.5:
    print(f"other programs use {used:.1f} of {len(cores)} cores")
END
}

say "installing what is missing; in all, this takes some ten minutes on two free cores"
tools/setup.sh --build-only
others=$(busy)
[ -z "$others" ] ||
    echo "quickstart.sh: $others: all of this takes longer, and its times say little about dcomm" >&2

say "building (a third of the time)"
# A directory that is there is left as it is, but for what this script needs.
if [ -f build/build.ninja ]; then
    meson configure build -Dbench=true -Dexamples=true
else
    meson setup build --buildtype=release -Dtests=false >build-setup.log ||
        { cat build-setup.log; exit 1; }
    rm -f build-setup.log
fi
ninja -C build all examples/01_hello examples/trainer

# On one machine nothing takes a minute: what does is stuck, and should say so soon.
export DCOMM_TIMEOUT=${DCOMM_TIMEOUT:-60}

out=build/quickstart
rm -rf "$out"
mkdir -p "$out"
trained=()
for configuration in "${configurations[@]}"; do
    name=${configuration%%|*}
    file=$out/train-${name//[^A-Za-z0-9]/_}.json
    read -ra options <<<"${configuration#*|}"
    say "training with $ranks ranks: $name"
    build/dcomm-run -n "$ranks" -- build/examples/trainer --steps "$steps" "${text[@]}" \
        --json "$file" "${options[@]}"
    trained+=("$name=$file")
done

say "measuring all-reduce with $ranks ranks (half a minute)"
others=$(busy)
build/dcomm-run -n "$ranks" -- build/dcomm-perf allreduce -b 4 -e 8M -f 8 --algo all,auto \
    --json "$out/allreduce.json" >"$out/allreduce.txt" || { cat "$out/allreduce.txt"; exit 1; }

# The distribution's Python has the plotting library, which another one in PATH may lack.
python=python3
python3 -c 'import matplotlib' 2>/dev/null || [ ! -x /usr/bin/python3 ] || python=/usr/bin/python3
say "results"
"$python" tools/report.py --perf "$out/allreduce.json" --html build/report.html \
    --note "${others:+While this was measured, ${others/ use / used }: the times are too long.}" "${trained[@]}"

cat <<END

Done after $((SECONDS / 60)) min. Next:
  build/report.html                                       what you have just seen, with plots
  build/dcomm-run -n $ranks -- build/examples/01_hello         the shortest program: examples/01_hello.c
  README.md, "A program"                              how to compile one, also without UCX and hwloc
  build/dcomm-plan allreduce ring -n 4                    how a ring all-reduce goes; --help for more
  README.md, "In an existing trainer"                     dcomm in a project of yours
  tools/test.sh                                           every test
END
