"""Loading that follows the trainer's pace: DLCache's run-time-aware loader (ISORC 2023) beside PyTorch's own and Fuelrail.

    fuelrail serve photos --count 2000 --script latency=fixed:20ms --port 9000
    python runtime_aware.py --uri http://127.0.0.1:9000/bucket/ --manifest MANIFEST [--json FILE]

A trainer that computes for 0.5 to 3 s a batch, ten times faster here: it waits for a tenth of that. As published, DLCache's loader watches how
long a batch takes to fetch and to compute over a window, has as many workers as the one takes of the other, rounded up, and reads one batch
ahead. Its workers are PyTorch's, since its code is not to be had. Each row reads the same number of batches; what is told apart is the whole
time, and the time within `next()`, after a first batch that each loader waits for.
"""

import argparse
import math
import time

import fuelrail
import torch
from torch.utils.data import DataLoader

from dataloader_boto3 import Bucket
from protocol import Task, parse, tell

SCALE, COMPUTE_S, BATCH, BATCHES, WINDOW, WORKERS_MAX = 10, (0.5, 1.0, 2.0, 3.0), 32, 40, 4, 16


def trained(batches, compute_s, count=BATCHES):
    """Takes `count` batches, computing after each: the time in all, that within next(), both from the second on, and the first wait."""
    batches, stall, begun = iter(batches), 0.0, time.perf_counter()
    next(batches)
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    for _ in range(count - 1):
        time.sleep(compute_s)
        waited = time.perf_counter()
        next(batches)
        stall += time.perf_counter() - waited
    return time.perf_counter() - begun + compute_s, stall, first


def torch_loader(task, workers, ahead):
    sampler = torch.utils.data.RandomSampler(range(len(task.objects)), generator=torch.Generator().manual_seed(task.seed))
    ahead = {"prefetch_factor": ahead} if workers else {}
    return DataLoader(Bucket(task), batch_size=BATCH, sampler=sampler, num_workers=workers, collate_fn=list, **ahead)


def dlcache(task, compute_s):
    """The number of workers that a window of batches, fetched by one, asks for."""
    alone = Bucket(task)
    begun = time.perf_counter()
    for batch in range(WINDOW):
        [alone[(batch * BATCH + i) % len(task.objects)] for i in range(BATCH)]
    fetch_s = (time.perf_counter() - begun) / WINDOW
    return max(1, min(WORKERS_MAX, math.ceil(fetch_s / compute_s)))


def ours(task):
    loader = fuelrail.Loader(task.uri, manifest=task.manifest, batch_size=BATCH, epochs=1 << 20, seed=task.seed, memory_limit=task.arena)
    for batch in loader:
        yield [batch.sample(i) for i in range(len(batch))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--json")
    given = parser.parse_args()
    with open(given.manifest, encoding="utf-8", newline="\n") as file:
        objects = [parse(number, line.rstrip("\n")) for number, line in enumerate(file, 1)]
    task = Task(given.uri, objects, BATCH, 512 << 20, 0, 0, given.manifest)
    rows = []
    for compute in COMPUTE_S:
        compute_s = compute / SCALE
        workers = dlcache(task, compute_s)
        for name, loader in [
            ("PyTorch, 2 workers, 2 batches ahead each", lambda: torch_loader(task, 2, 2)),
            (f"DLCache: {workers} workers, 1 batch ahead each", lambda: torch_loader(task, workers, 1)),
            ("Fuelrail, defaults", lambda: ours(task)),
        ]:
            whole, stall, first = trained(loader(), compute_s)
            row = {"compute_s": compute, "loader": name, "whole_s": whole * SCALE, "stall_s": stall * SCALE, "first_s": first * SCALE}
            rows.append(row)
            print(f"{compute:4} s a batch  {name:45} whole {row['whole_s']:7.1f} s  stall {row['stall_s']:6.1f} s  first {row['first_s']:5.1f} s", flush=True)
    tell({"batches": BATCHES, "batch": BATCH, "scale": SCALE, "rows": rows}, given.json, "rows")


if __name__ == "__main__":
    main()
