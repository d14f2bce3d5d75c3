#!/usr/bin/env python3
"""Time what torch, CuPy and Triton make of the work of our CUDA kernels, by the rule of
bench/kernels_time.h: events, the median, for each call new inputs and a poisoned output, 2^28 and 2^22
elements. (The second cache is not emptied in between.)

  bench/peers/gpu_peers.py [--log2 N]... [--json FILE] [--iterations N] [--seconds N]

torch: topk of 1% by magnitude, casts (that to e4m3 is no codec: it has no scales), QSGD (4 bits, buckets
of 512, stochastic) as eager operations and compiled; CuPy: casts, partition of magnitudes; Triton: QSGD
as one kernel. What gives a new array each time is not poisoned. `bytes` are those that the
work needs, not those that a method moves. What is not installed, or fails, is named and left out.
Exit: 0 good or nothing to measure, 1 an output was not written, 2 usage."""
import argparse
import json
import statistics
import sys
import time

BUCKET = 512
POISON = 77  # whole in every type that outputs have, and no sum or code of many
START = time.monotonic()


class Left(Exception):
    pass


def median_us(iterations, event, elapsed_ms, inputs, run, outs):
    """inputs() makes them anew before each call; outs, unless each call returns new arrays, are poisoned."""
    took = []
    for i in range(-5, iterations):
        inputs()
        for out in outs:
            out[...] = POISON
        begin, end = event(), event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 0:
            took.append(1e3 * elapsed_ms(begin, end))
        if any(bool((part == POISON).all()) for out in outs for part in
               (out.reshape(-1)[:16], out.reshape(-1)[-16:])):
            raise Left
    return statistics.median(took)


def torch_median_us(torch, iterations, inputs, run, *outs):
    return median_us(iterations, lambda: torch.cuda.Event(enable_timing=True),
                     lambda begin, end: begin.elapsed_time(end), inputs, run, outs)


def cupy_median_us(cupy, iterations, inputs, run, *outs):
    return median_us(iterations, cupy.cuda.Event, cupy.cuda.get_elapsed_time, inputs, run, outs)


class Table:
    def __init__(self, args, device):
        self.args, self.device, self.rows, self.copy_rate, self.bad = args, device, [], None, 0
        print(f"# {device}; per_copy: beside the same library's copy of this size")
        print(f"{'kernel':<42} {'elements':>11} {'bytes':>12} {'time_us':>11} {'GB/s':>9} "
              f"{'per_copy':>7}", flush=True)

    def late(self, name):
        if time.monotonic() - START <= self.args.seconds:
            return False
        print(f"# skipped: {name} (the time is up)", flush=True)
        return True

    def put(self, name, count, size, median):
        """median: a function that returns microseconds, or raises."""
        if self.late(name):
            return
        try:
            took = median()
        except Left:
            print(f"# {name} left a part of its output", flush=True)
            self.bad += 1
            return
        except Exception as e:  # pylint: disable=broad-except
            print(f"# {name}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
                  flush=True)
            return
        if name.endswith(" copy"):
            self.copy_rate = size / took
        per_copy = size / took / self.copy_rate if self.copy_rate else None
        self.rows.append({"kernel": name, "count": count, "bytes": size, "time_us_med": took,
                          "per_copy": per_copy})
        shown = f"{per_copy:7.3f}" if per_copy else f"{'-':>7}"
        print(f"{name:<42} {count:11d} {size:12d} {took:11.1f} {size / took / 1000:9.1f} {shown}",
              flush=True)
        if self.args.json:
            with open(self.args.json, "w", encoding="utf-8") as out:
                json.dump({"schema": 1, "tool": "gpu_peers", "device": self.device,
                           "results": self.rows}, out, indent=1)


def qsgd(torch):
    """QSGD of 4 bits: returns packed codes and a step for each bucket."""
    def encode(x):
        rows = x.view(-1, BUCKET)
        step = rows.abs().amax(dim=1, keepdim=True) / 7
        inverse = torch.where(step > 0, 1 / step, torch.zeros_like(step))
        level = torch.floor(rows * inverse + torch.rand_like(rows)).clamp(-7, 7).to(torch.int8)
        code = (level & 15).view(-1, 2).to(torch.uint8)
        return code[:, 0] | code[:, 1] << 4, step

    def decode(code, step):
        low = (code << 4).view(torch.int8) >> 4
        high = code.view(torch.int8) >> 4
        level = torch.stack((low, high), dim=1).view(-1, BUCKET)
        return (level.to(torch.float32) * step).view(-1)
    return encode, decode


def of_torch(table, torch, n):
    def timed(inputs, run, *outs):
        return lambda: torch_median_us(torch, table.args.iterations, inputs, run, *outs)

    def new_x():
        x.normal_()

    def new_code():
        x.normal_()
        new = encode(x)
        code.copy_(new[0])
        step.copy_(new[1])
    x, y = torch.randn(n, device="cuda"), torch.empty(n, device="cuda")
    half = torch.empty(n, device="cuda", dtype=torch.float16)
    brain = torch.empty(n, device="cuda", dtype=torch.bfloat16)
    table.put("torch copy", n, 8 * n, timed(new_x, lambda: y.copy_(x), y))
    table.put("torch f32 to f16", n, 6 * n, timed(new_x, lambda: half.copy_(x), half))
    table.put("torch f32 to bf16", n, 6 * n, timed(new_x, lambda: brain.copy_(x), brain))
    table.put("torch bf16 to f32", n, 6 * n,
              timed(lambda: brain.normal_(), lambda: y.copy_(brain), y))
    if hasattr(torch, "float8_e4m3fn"):
        eight = torch.empty(n, device="cuda", dtype=torch.float8_e4m3fn)
        table.put("torch f32 to e4m3, no scale", n, 5 * n,
                  timed(new_x, lambda: eight.copy_(x), eight.view(torch.uint8)))
    other = torch.randn(n, device="cuda")
    table.put("torch f32 sum of 2", n, 12 * n,
              timed(new_x, lambda: torch.add(x, other, out=y), y))
    del other
    encode, decode = qsgd(torch)
    wire = n // 2 + 4 * (n // BUCKET)
    code, step = encode(x)
    table.put("torch qsgd 4 bits encode, eager", n, 4 * n + wire, timed(new_x, lambda: encode(x)))
    table.put("torch qsgd 4 bits decode, eager", n, 4 * n + wire,
              timed(new_code, lambda: decode(code, step)))
    compiled, back = (torch.compile(f, dynamic=False) for f in (encode, decode))
    table.put("torch qsgd 4 bits encode, compiled", n, 4 * n + wire, timed(new_x, lambda: compiled(x)))
    table.put("torch qsgd 4 bits decode, compiled", n, 4 * n + wire,
              timed(new_code, lambda: back(code, step)))
    k = n // 100

    def topk():
        index = torch.topk(x.abs(), k, sorted=False).indices
        return x[index]
    table.put("torch topk 1%, by magnitude", n, 4 * n + 8 * k, timed(new_x, topk))


def of_cupy(table, cupy, n):
    def timed(inputs, run, *outs):
        return lambda: cupy_median_us(cupy, table.args.iterations, inputs, run, *outs)

    def new_x():
        x[...] = cupy.random.standard_normal(n, dtype=cupy.float32)

    def new_half():
        new_x()
        cupy.copyto(half, x)
    x = cupy.empty(n, dtype=cupy.float32)
    half, y = cupy.empty(n, dtype=cupy.float16), cupy.empty(n, dtype=cupy.float32)
    table.put("CuPy copy", n, 8 * n, timed(new_x, lambda: cupy.copyto(y, x), y))
    table.put("CuPy f32 to f16", n, 6 * n, timed(new_x, lambda: cupy.copyto(half, x), half))
    table.put("CuPy f16 to f32", n, 6 * n, timed(new_half, lambda: cupy.copyto(y, half), y))
    k = n // 100

    def largest():
        return cupy.argpartition(cupy.abs(x), n - k)[n - k:]
    if n <= 1 << 26:  # it sorts all of it
        table.put("CuPy argpartition 1%, by magnitude", n, 4 * n + 8 * k, timed(new_x, largest))


TRITON_QSGD = '''
import triton
import triton.language as tl


@triton.jit
def encode(x, wire, steps, seed, BUCKET: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BUCKET)
    v = tl.load(x + pid * BUCKET + at)
    step = tl.max(tl.abs(v)) / 7
    inverse = tl.where(step > 0, 1 / step, 0.0)
    chance = tl.rand(seed, pid * BUCKET + at)
    level = tl.floor(v * inverse + chance).to(tl.int32) & 15
    low, high = tl.split(tl.reshape(level, (BUCKET // 2, 2)))
    tl.store(wire + pid * (BUCKET // 2) + tl.arange(0, BUCKET // 2), (low | high << 4).to(tl.uint8))
    tl.store(steps + pid, step)
'''


def of_triton(table, torch, n):
    import importlib.util
    import tempfile
    with tempfile.NamedTemporaryFile("w", suffix=".py") as source:  # triton reads a kernel's source
        source.write(TRITON_QSGD)
        source.flush()
        spec = importlib.util.spec_from_file_location("triton_qsgd", source.name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        x = torch.randn(n, device="cuda")
        wire = torch.empty(n // 2, device="cuda", dtype=torch.uint8)
        steps = torch.empty(n // BUCKET, device="cuda")
        seed = [0]

        def run():
            seed[0] += 1
            module.encode[(n // BUCKET,)](x, wire, steps, seed[0], BUCKET=BUCKET)
        table.put("Triton qsgd 4 bits encode", n, 4 * n + n // 2 + 4 * (n // BUCKET),
                  lambda: torch_median_us(torch, table.args.iterations, lambda: x.normal_(), run, wire,
                                          steps))


def cupy_sees(cupy):
    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


def attempt(name, run):
    try:
        run()
    except Exception as e:  # pylint: disable=broad-except
        print(f"# not to be had: {name}: {type(e).__name__}: {e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log2", type=int, action="append", choices=range(10, 31), metavar="N")
    parser.add_argument("--json")
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=100)
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        torch = None
    try:
        import cupy
    except ImportError:
        cupy = None
    try:
        import triton
    except ImportError:
        triton = None
    for name, found in (("torch", torch), ("CuPy", cupy), ("Triton", triton)):
        print(f"# {name}: {found.__version__ if found else 'not installed'}", flush=True)
    torch = torch if torch is not None and torch.cuda.is_available() else None
    cupy = cupy if cupy is not None and cupy_sees(cupy) else None
    if torch is None and cupy is None:
        print("# skipped: gpu_peers (neither torch nor CuPy sees a GPU)")
        return 0
    table = Table(args, torch.cuda.get_device_name(0) if torch is not None else
                  cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    for log2 in args.log2 or (28, 22):
        n = 1 << log2
        if torch is not None:
            attempt("torch", lambda: of_torch(table, torch, n))  # pylint: disable=W0640
            torch.cuda.empty_cache()
        if torch is not None and triton is not None:  # whose copy and times are torch's
            attempt("Triton", lambda: of_triton(table, torch, n))  # pylint: disable=W0640
            torch.cuda.empty_cache()
        if cupy is not None:
            attempt("CuPy", lambda: of_cupy(table, cupy, n))  # pylint: disable=W0640
            attempt("CuPy", cupy.get_default_memory_pool().free_all_blocks)
    return 1 if table.bad else 0


if __name__ == "__main__":
    sys.exit(main())
