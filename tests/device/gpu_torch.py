#!/usr/bin/env python3
"""PyTorch with dcomm in NCCL's place, all ranks on the first GPU.

  LD_PRELOAD=.../libnccl.so.2 gpu_torch.py RANKS

Imports torch, and sees that calls of NCCL reach the library that was preloaded; then, with RANKS
above 0, all-reduces, and trains a layer for five steps with DistributedDataParallel, each rank on
other rows, and compares it with training on all rows. Exit: 0 good, 1 wrong."""
import ctypes
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH, STEPS = 8, 64, 5


class Symbol(ctypes.Structure):
    """What dladdr says of an address."""
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("at", ctypes.c_void_p)]


def bound():
    """The file in which this process finds NCCL's functions. torch loads its own, too, by its path."""
    process, symbol = ctypes.CDLL(None), Symbol()
    at = ctypes.cast(process.ncclGetVersion, ctypes.c_void_p)
    assert process.dladdr(at, ctypes.byref(symbol)) != 0
    return os.path.realpath(symbol.file.decode())


def layer():
    torch.manual_seed(1)
    return torch.nn.Linear(WIDTH, WIDTH).cuda()


def train(model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()


def rank_main(rank, ranks, meeting):
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method="file://" + meeting, rank=rank, world_size=ranks)
    ones = torch.full((1 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(ones)
    assert bool((ones == ranks * (ranks + 1) / 2).all()), "all_reduce"
    torch.manual_seed(2)
    rows = torch.randn(ranks * ROWS, WIDTH, device="cuda")
    alone, together = layer(), DistributedDataParallel(layer(), device_ids=[0])
    train(alone, rows)
    train(together, rows[rank * ROWS:(rank + 1) * ROWS])
    for a, b in zip(alone.parameters(), together.module.parameters()):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    dist.barrier()
    dist.destroy_process_group()


def main():
    ranks = int(sys.argv[1])
    print(f"# torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}, {bound()}")
    if bound() != os.path.realpath(os.environ["LD_PRELOAD"]):
        print("# that is not the library that was preloaded")
        return 1
    if ranks > 0:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(rank_main, (ranks, folder + "/meeting"), nprocs=ranks)
        print(f"# DistributedDataParallel, {ranks} ranks on one GPU: as on all rows alone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
