#!/usr/bin/env bash
# test_codec_tool.sh BUILD - dcomm-codec: its figures are those of the theory, its JSON fits the
# schema, files are read, exit codes.
cd "$(dirname "$0")/../.." || exit 2
. tests/lib/lib.sh
build=${1:-build}
if [ ! -x "$build/dcomm-codec" ]; then
    skip "dcomm-codec" "not built"
    finish
fi
codec=$build/dcomm-codec
json=$scratch/codec.json

# run ARGUMENTS...: without speeds, to $json.
run() {
    timeout 300 "$codec" --time 0 --json "$json" "$@"
}

# holds NAME TEST ARGUMENTS...: the run is good, its JSON fits the schema, and the Python expression
# over its rows r and the whole d is true.
holds() {
    local name=$1 test=$2
    shift 2
    { run "$@" && python3 - docs/dcomm-codec.schema.json "$json" "$test" <<'PY'; } >"$out" 2>&1
import json, sys
schema, d = (json.load(open(name)) for name in sys.argv[1:3])
try:
    import jsonschema
    jsonschema.validate(d, schema)
except ImportError:
    print("python3-jsonschema is not installed")
r = d["results"]
for row in r:
    row["last"] = row["steps"][-1] if "steps" in row else None
if not eval(sys.argv[3]):
    print(json.dumps(d, indent=1)[:4000])
    sys.exit(sys.argv[3])
PY
    ok "$name" $?
}

# within VALUE EXPECTED SHARE, in Python.
near='abs((%s) / (%s) - 1) < %s'

# ---- figures ----

# q(row): nmse of the sum over that of one encoding.
q='r[0]["last"]["nmse"] / r[0]["encode"]["nmse"]'
all='r[0]["steps"][-1]["nmse_all"] < 0.1 * r[0]["steps"][0]["nmse_all"]'
for p in 2 32 $(full && echo 8 1024); do
    holds "two shots: twice omega with $p ranks" "$(printf "$near" "$q" 2 0.05)" \
        --codec qsgd:bits=8 --input gaussian:n=64K --ranks $p
    holds "ring: (P+1)/2 times omega with $p ranks" "$(printf "$near" "$q" "($p+1)/2" 0.06)" \
        --codec qsgd:bits=8 --input gaussian:n=64K --ranks $p --aggregate ring
    holds "all-gather: omega with $p ranks" "$(printf "$near" "$q" 1 0.05)" \
        --codec qsgd:bits=8 --input gaussian:n=64K --ranks $p --aggregate allgather
done
# Of other kinds, the sum over many ranks is normal: its second encoding has a normal sum's omega, and
# so has nearly every hop of a ring; but what a sparse gradient adds no element to stays where it was
# rounded to, which costs nothing.
normal=1.111e-4
for kind in laplace:n=16K lognormal:n=64K,block=512 sparse:n=16K,density=0.1 constant:n=16K; do
    for p in 64 $(full && echo 512); do
        holds "two shots of ${kind%%:*}: its omega and a normal one with $p ranks" \
            "$(printf "$near" 'r[0]["last"]["nmse"]' "(r[0]['encode']['nmse'] + $normal)" 0.1)" \
            --codec qsgd:bits=8 --input $kind --ranks $p
        ring=$(printf "$near" 'r[0]["last"]["nmse"]' "($normal * ($p+1)/2)" 0.1)
        [ "${kind%%:*}" != sparse ] || ring="0.2 < r[0]['last']['nmse'] / ($normal * ($p+1)/2) < 0.5"
        holds "ring of ${kind%%:*}: (P+1)/2 times a normal omega with $p ranks" "$ring" \
            --codec qsgd:bits=8 --input $kind --ranks $p --aggregate ring
    done
done
holds "two shots of real gradients" \
    '1.5 < r[0]["last"]["nmse"] / r[0]["encode"]["nmse"] < 3' \
    --codec qsgd:bits=8 --input tests/data/gradients/rank%r.npy --ranks 3
holds "max norm, 4 bits, bucket 512: nmse 0.036" \
    '0.034 < r[0]["encode"]["nmse"] < 0.039 and abs(r[0]["encode"]["bits"] - 4.0625) < 1e-9' \
    --codec qsgd:bits=4,bucket=512,norm=max --input gaussian:n=256K
holds "two norm: 1.58" '1.5 < r[0]["encode"]["nmse"] < 1.66' \
    --codec qsgd:bits=4,bucket=512,norm=two --input gaussian:n=256K
holds "sign: 1 - 2/pi of a normal" 'abs(r[0]["encode"]["nmse"] - (1 - 2/3.14159265)) < 0.003' \
    --codec sign --input gaussian:n=256K
holds "top-k on constant magnitude: exactly 1 - k/d" \
    'abs(r[0]["encode"]["nmse"] - 0.75) < 1e-5 and r[0]["encode"]["kept"] == 16384' \
    --codec topk:k=0.25 --input constant:n=64K,scale=3
holds "top-k of a tenth that is not 0: nothing is lost" \
    'r[0]["encode"]["nmse"] < 1e-12 and r[0]["encode"]["cosine"] > 0.999999' \
    --codec topk:k=0.15 --input sparse:n=64K,density=0.1
# Two ranks with A + B and A - B, both of rank one: their sum is of rank one, and nothing of it is
# lost; a sum of their own approximations would be wrong.
python3 - "$scratch" <<'PY'
import math, struct, sys
n = 48
u, v, w, z = ([math.sin(k * (i + 1)) for i in range(n)] for k in (1, 2.3, 3.7, 5.1))
for rank, sign in enumerate((1, -1)):
    x = [u[i] * v[j] + sign * w[i] * z[j] for i in range(n) for j in range(n)]
    head = repr({"descr": "<f4", "fortran_order": False, "shape": (n, n)}).ljust(117) + "\n"
    with open(f"{sys.argv[1]}/rank{rank}.npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack(f"<{n * n}f", *x))
PY
holds "powersgd approximates the sum, not each rank's part of it" \
    'r[0]["encode"]["nmse"] > 0.2 and r[0]["last"]["nmse"] < 1e-10' \
    --codec powersgd:rank=1 --input "$scratch/rank%r.npy" --ranks 2
holds "and mends with feedback what it lost" "$all" --codec powersgd:rank=2 \
    --input tests/data/gradients/rank%r.npy --ranks 3 --steps 40 --feedback classic
holds "randk is unbiased, and d/k - 1 far off" \
    'abs(r[0]["encode"]["nmse"] / 9 - 1) < 0.1 and r[0]["unbiased"] and r[0]["linear"]' \
    --codec randk:k=0.1 --input gaussian:n=256K
for input in laplace:n=5000 lognormal:n=5000,sigma=2,block=16 sparse:n=5000 constant:n=1 gaussian:n=3; do
    holds "casts of $input" 'r[0]["encode"]["nmse"] < 1e-5 and r[1]["encode"]["nmse"] < 1e-4' \
        --codec f16 --codec bf16 --input $input --ranks 3
done

# ---- error feedback ----

for way in two_shot ring allgather; do
    holds "feedback mends the sum over steps: $way" "$all and r[0]['last']['contraction'] < 0.64" \
        --codec sign --input gaussian:n=16K --ranks 4 --steps 40 --feedback classic --aggregate $way
done
holds "feedback mends the sum over steps: sparse" "$all and r[0]['last']['fill_in_over_k'] < 4.001" \
    --codec topk:k=0.05 --input tests/data/gradients/rank%r.npy --ranks 3 --steps 200 --feedback classic \
    --aggregate sparse
holds "a sparse sum of 256 ranks is as long as one rank's part" \
    '0.9 < r[0]["last"]["fill_in"] / 0.01 < 1.2 and r[0]["last"]["fill_in_share"] > 0.2' \
    --codec topk:k=0.01 --input gaussian:n=64K --ranks 256 --aggregate sparse
expect "nothing sparse to exchange" 2 "topk and threshold" run --codec sign --input gaussian:n=1K \
    --ranks 2 --aggregate sparse
holds "without it, it stays" 'r[0]["last"]["nmse_all"] > 0.3 * r[0]["steps"][0]["nmse_all"]' \
    --codec topk:k=0.05 --input constant:n=16K --ranks 2 --steps 20
holds "of real gradients, the same in each step" "$all" --codec topk:k=0.05 \
    --input tests/data/gradients/rank%r.npy --ranks 3 --steps 200 --feedback classic
holds "EF21 on constant gradients" 'r[0]["last"]["nmse"] < 1e-3' --codec topk:k=0.1 \
    --input tests/data/gradients/rank%r.npy --ranks 3 --steps 200 --feedback ef21
holds "DGC warms up" 'r[0]["steps"][0]["kept"] > 4 * r[0]["last"]["kept"]' --codec topk:k=0.01 \
    --input gaussian:n=16K --ranks 2 --steps 20 --feedback dgc --warmup 10
holds "residuals in bf16" "$all" --codec sign --input gaussian:n=16K --steps 40 \
    --feedback classic --residuals bf16
holds "an expanding codec, scaled" 'r[0]["last"]["contraction"] < 1' --codec randk:k=0.1 --scale \
    --input gaussian:n=16K --steps 20 --feedback classic
expect "or refused" 2 "grow without bound" run --codec randk:k=0.1 --input gaussian:n=1K \
    --feedback classic

# ---- all of it ----

check "a sweep, with speeds" timeout 300 "$codec" --sweep --input laplace:n=20000 --ranks 2 \
    --json "$json" --svg "$scratch/sweep.svg"
holds "its JSON, every codec" 'len(r) > 20 and all("refused" not in x for x in r)' \
    --sweep --input laplace:n=20000 --ranks 2
check "its picture" python3 -c 'import sys, xml.dom.minidom as m
n = len(m.parse(sys.argv[1]).getElementsByTagName("circle")); print(n); assert n > 40' \
    "$scratch/sweep.svg"
check "no label lies on another, nor on a point" python3 -c 'import sys, xml.dom.minidom as m
def at(e, *names):
    return [float(e.getAttribute(n)) for n in names]
d = m.parse(sys.argv[1])
labels = [t for t in d.getElementsByTagName("text") if t.getAttribute("class") == "number"]
boxes = [(x, y - 3.5, 6 * len(t.firstChild.data), 10) for t in labels for x, y in [at(t, "x", "y")]]
points = [(x, y, 8, 8) for c in d.getElementsByTagName("circle") for x, y in [at(c, "cx", "cy")]]
assert len(boxes) > 20, len(boxes)
for i, (x, y, w, h) in enumerate(boxes):
    for u, v, p, q in boxes[:i] + points:
        assert abs(x - u) >= (w + p) / 2 or abs(y - v) >= (h + q) / 2, (x, y, u, v)
assert "max-width" in d.documentElement.getAttribute("style")' "$scratch/sweep.svg"
check "a picture of steps" run --codec sign --codec topk --input gaussian:n=5000 --steps 9 \
    --feedback classic --svg "$scratch/steps.svg"
check "is XML" python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' \
    "$scratch/steps.svg"
if python3 -c 'import numpy' 2>/dev/null || /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
    python=python3
    python3 -c 'import numpy' 2>/dev/null || python=/usr/bin/python3
    check "files of NumPy's" "$python" -c 'import sys, numpy as np
x = np.random.default_rng(1).standard_normal((37, 11))
for t in "f2", "f4", "f8", ">f4", "i4":
    np.save(f"{sys.argv[1]}/{t}.npy", x.astype(t))
np.save(sys.argv[1] + "/fortran.npy", np.asfortranarray(x))
np.save(sys.argv[1] + "/empty.npy", x[:0])
x[3, 4] = np.nan
np.save(sys.argv[1] + "/nan.npy", x)' "$scratch"
    for t in f2 f4 f8; do
        holds "$t" 'd["count"] == 407 and 0 < r[0]["encode"]["nmse"] < 1e-3' \
            --codec qsgd:bits=8 --input "$scratch/$t.npy"
    done
    check "files of numbers alone" "$python" -c 'import sys, numpy as np
x = np.load(sys.argv[1] + "/f4.npy")
b = (x.view("u4") >> 16).astype("u2")
for name, y in ("f32", x), ("f64", x.astype("f8")), ("f16", x.astype("f2")), ("bf16", b):
    y.tofile(f"{sys.argv[1]}/{name}.raw")
np.save(sys.argv[1] + "/bf16.npy", b)' "$scratch"
    head -c 1004 "$scratch/f64.raw" >"$scratch/cut.raw"
    for t in f32 f64 f16 bf16; do
        holds "$t without a header" 'd["count"] == 407 and 1e-5 < r[0]["encode"]["nmse"] < 1e-3' \
            --codec qsgd:bits=8 --input "$scratch/$t.raw" --dtype "$t"
    done
    holds "bf16 in a .npy file" 'd["count"] == 407 and r[0]["encode"]["nmse"] == 0' \
        --codec bf16 --input "$scratch/bf16.npy" --dtype bf16
    holds "the file's own matrix" '"rows=37" in str(r[0])' \
        --codec powersgd:rank=2 --input "$scratch/f4.npy"
    expect "numbers of no type" 2 "numpy.save" run --codec sign --input "$scratch/f32.raw"
    expect "another type" 2 "another than --dtype" run --codec sign --input "$scratch/f4.npy" \
        --dtype f64
    expect "half an element" 2 "not a multiple" run --codec sign --input "$scratch/cut.raw" \
        --dtype f64
    expect "big-endian" 2 "it is big-endian" run --codec sign --input "$scratch/>f4.npy"
    expect "integers" 2 "not float16, float32 or float64" run --codec sign --input "$scratch/i4.npy"
    expect "Fortran's order" 2 "Fortran order" run --codec sign --input "$scratch/fortran.npy"
    expect "nothing in it" 2 "has no elements" run --codec sign --input "$scratch/empty.npy"
    expect "NaN" 1 "1 were not finite" run --codec sign --input "$scratch/nan.npy"
    check "archives and a folder of NumPy's" "$python" -c 'import sys, os, struct, zipfile, numpy as np
d = sys.argv[1] + "/"
x = np.load(d + "f4.npy")
arrays = {"w": x, "b": x[0], "s": x[0, 0]}
np.savez(d + "stored.npz", **arrays)
np.savez_compressed(d + "deflated.npz", **arrays)
np.savez(d + "one.npz", w=x)
for r in 0, 1:
    np.savez(f"{d}rank{r}.npz", w=x * (1 + r), b=x[r])
os.mkdir(d + "folder")
np.save(d + "folder/a.npy", x)
np.savez(d + "folder/b.npz", b=x[0], s=x[0, 0])
os.mkdir(d + "nothing")
open(d + "nothing.npz", "w").close()
data = open(d + "stored.npz", "rb").read()
def put(name, data):
    open(d + name, "wb").write(data)
put("npz-cut.npz", data[:-30])
put("npz-flipped.npz", data[:400] + bytes([data[400] ^ 1]) + data[401:])
with zipfile.ZipFile(d + "npz-twice.npz", "w") as z:
    body = open(d + "f4.npy", "rb").read()
    z.writestr("w.npy", body)
    z.writestr("v.npy", body)
twice = open(d + "npz-twice.npz", "rb").read()
put("npz-twice.npz", twice.replace(b"v.npy", b"w.npy"))
second = twice.rindex(b"PK\1\2")
put("npz-over.npz", twice[:second + 42] + bytes(4) + twice[second + 46:])
def head(name, n):
    return struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, n, n, len(name), 0) + name
def entry(name, n, at):
    return struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, n, n, len(name), *[0] * 5, at) + name
inner = head(b"v.npy", len(body)) + body
outer = head(b"w.npy", len(inner)) + inner
listed = entry(b"w.npy", len(inner), 0) + entry(b"v.npy", len(body), len(outer) - len(inner))
put("npz-inside.npz", outer + listed +
    struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(listed), len(outer), 0))
put("npz-huge.npz", twice[:second + 10] + b"\x08\0" + twice[second + 12:second + 24] +
    b"\xf0\xff\xff\xff" + twice[second + 28:])' "$scratch"
    total='d["count"] == 419 and [t["count"] for t in d["tensors"]] == %s and
        r[0]["encode"]["wire_bytes"] == sum(t["results"][0]["encode"]["wire_bytes"] for t in d["tensors"])
        and abs(r[0]["encode"]["nmse"] / d["tensors"][0]["results"][0]["encode"]["nmse"] - 1) < 0.1'
    total=$(tr '\n' ' ' <<<"$total")
    holds "an archive's arrays, and all of them" "$(printf "$total" '[407, 11, 1]')" \
        --codec qsgd:bits=8 --input "$scratch/stored.npz"
    if grep -q -e -DNPZ_ZLIB "$build/build.ninja"; then
        holds "a compressed one" "$(printf "$total" '[407, 11, 1]')" \
            --codec qsgd:bits=8 --input "$scratch/deflated.npz"
    else
        expect "a compressed one without zlib" 2 "numpy.savez makes a file without" \
            run --codec sign --input "$scratch/deflated.npz"
    fi
    holds "a folder's" "$(printf "$total" '[407, 11, 1]')" --codec qsgd:bits=8 --input "$scratch/folder"
    holds "files by name" '[t["count"] for t in d["tensors"]] == [407, 407] and d["count"] == 814' \
        --codec sign "$scratch/f4.npy" "$scratch/f2.npy"
    holds "one array is one tensor" '"tensors" not in d and "rows=37" in str(r[0])' \
        --codec powersgd:rank=2 --input "$scratch/one.npz"
    holds "of several ranks and steps" 'len(d["tensors"]) == 2 and r[0]["steps"][2]["fill_in"] == 1' \
        --codec sign --input "$scratch/rank%r.npz" --ranks 2 --steps 3 \
        --feedback classic
    expect "each and all in the table" 0 "^# all 3 tensors: 419 elements" \
        run --codec sign --input "$scratch/stored.npz"
    expect "a file that is not there is missed before any is encoded" 2 "^1$" bash -c \
        '"$@" >"$0" 2>&1; code=$?; wc -l <"$0"; exit $code' "$scratch/said" \
        "$codec" --codec sign "$scratch/f4.npy" /nonexistent.npy
    : >"$scratch/empty.raw"
    expect "an empty file" 2 "has no elements" run --codec sign --input "$scratch/empty.raw" --dtype f32
    expect "an empty archive" 2 "is no .npz file" run --codec sign --input "$scratch/nothing.npz"
    expect "an array that another rank has not" 2 "rank2.npz: w: No such file" \
        run --codec sign --input "$scratch/rank%r.npz" --ranks 3
    expect "a folder of nothing" 2 "no .npy or .npz file" run --codec sign --input "$scratch/nothing"
    expect "an archive that was cut" 2 "ends early" \
        run --codec sign --input "$scratch/npz-cut.npz"
    expect "a bit of an array flipped" 2 "its bytes are damaged" \
        run --codec sign --input "$scratch/npz-flipped.npz"
    expect "two arrays of a name" 2 "one name" run --codec sign --input "$scratch/npz-twice.npz"
    expect "two arrays at one place" 2 "names another array than lies there" \
        run --codec sign --input "$scratch/npz-over.npz"
    expect "an array inside another" 2 "one over the other" \
        run --codec sign --input "$scratch/npz-inside.npz"
    expect "an array larger than its bytes hold" 2 "cannot be that of its bytes" \
        run --codec sign --input "$scratch/npz-huge.npz"
    head -c 1000 "$scratch/f4.npy" >"$scratch/cut.npy"
    expect "a file that was cut" 2 "shorter than its shape says" run --codec sign \
        --input "$scratch/cut.npy"
else
    skip "files of NumPy's" "NumPy is not installed"
fi

# ---- exit codes ----

expect "--help" 0 "^usage: dcomm-codec" "$codec" --help
expect "--list" 0 "^qsgd: " "$codec" --list
expect "no input" 2 "input is missing" "$codec" --codec sign
expect "no codec" 2 "codec or --sweep is missing" "$codec" --input gaussian
expect "unknown codec" 2 "no codec 'zip'" "$codec" --codec zip --input gaussian:n=10
expect "unknown option of a codec" 2 "sign" "$codec" --codec sign:bits=3 --input gaussian:n=10
expect "unknown option" 2 "unknown option" "$codec" --nosuch
expect "unknown distribution's option" 2 "no option 'sigma'" "$codec" --input gaussian:sigma=1
expect "no such file" 2 "No such file" "$codec" --codec sign --input /nonexistent.npy
expect "too many ranks" 2 "1025" "$codec" --codec sign --input gaussian:n=10 --ranks 1025
expect "more than there is" 2 "more than there is" "$codec" --codec sign --input gaussian:n=16G \
    --ranks 1000 --feedback classic
expect "a ring with EF21" 2 "no --feedback but classic" "$codec" --codec sign --input gaussian \
    --aggregate ring --feedback ef21
expect "nowhere to write" 2 "cannot write" "$codec" --codec sign --input gaussian:n=10 --time 0 \
    --json /nonexistent/x
finish
