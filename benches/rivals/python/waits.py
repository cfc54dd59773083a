"""How long a trainer waits: Fuelrail at the step times at which the best other loader waits a twentieth, a fifth and half of the time.

    fuelrail serve FOLDER --port 9000 --script latency=fixed:20ms
    python waits.py --uri http://127.0.0.1:9000/bucket/ --manifest MANIFEST --packed-root http://127.0.0.1:9000/bucket/ [--json FILE]

Every loader runs as its script here runs it, with 0, 2 and 4 worker processes where it takes any; the best is the one that delivers fastest to a
trainer without a step. For each of `SHARES` a bisection finds the step time at which the best waits for that share of the run. Then Fuelrail, from
Python with its defaults, delivers as many batches to a trainer with that step time. `FOLDER` holds the objects, whose whole keys the manifest has, and, packed by `packing.py`, the shards: `tar`, `mds` and `litdata`.
"""

import importlib
import time

from pipeline import epoch_of, options, task_of
from protocol import tell
from runtime_aware import ours

SHARES = (0.5, 0.2, 0.05)
WORKERS = (0, 2, 4)
BATCHES, BATCH = 48, 32
# Script, shards it reads, and whether it takes worker processes.
OTHERS = {
    "webdataset": ("webdataset_http", "tar", True),
    "mosaicml-streaming": ("mosaicml_s3", "mds", True),
    "litdata": ("litdata_s3", "litdata", False),
    "s3torchconnector": ("s3torchconnector_map", None, True),
    "obstore": ("obstore_get", None, False),
    "s3dlio": ("s3dlio_get_many", None, False),
}


def batches_of(script, task):
    """The batches of a script, without the harness it speaks to: epoch after epoch."""
    epoch, settings = epoch_of(importlib.import_module(script), task)

    def forever():
        while True:
            yield from epoch()
            task.passes += 1

    return forever(), settings


def waits(batches, step_s):
    """Share of the time waited, and the seconds, with a trainer that computes for `step_s` a batch, its first batches apart."""
    for _ in range(4):
        next(batches)
    stall = 0.0
    for _ in range(BATCHES):
        time.sleep(step_s)
        begun = time.perf_counter()
        next(batches)
        stall += time.perf_counter() - begun
    return stall / (stall + BATCHES * step_s), stall


def main():
    given = options().parse_args()

    def task(workers, packed):
        return task_of(given, BATCH, workers, packed)

    tried = []
    for name, (script, packed, takes_workers) in OTHERS.items():
        for workers in WORKERS if takes_workers else (0,):
            try:
                batches, settings = batches_of(script, task(workers, packed))
                _, took = waits(batches, 0.0)
            except (Exception, SystemExit) as error:  # one that fails is told, and the others go on
                tried.append({"loader": name, "workers": workers, "failure": (str(error).strip().splitlines() or ["nothing said"])[-1]})
                print(tried[-1], flush=True)
                continue
            tried.append({"loader": name, "workers": workers, "batch_s": took / BATCHES, "settings": settings})
            print(f"{name}, {workers} workers: {took / BATCHES * 1e3:.1f} ms a batch", flush=True)
    best = min((row for row in tried if "batch_s" in row), key=lambda row: row["batch_s"])
    script, packed, _ = OTHERS[best["loader"]]
    rows = []
    for share in SHARES:
        low, high = 0.0, 4 * best["batch_s"] / share
        for _ in range(6):
            step_s = (low + high) / 2
            found, stall = waits(batches_of(script, task(best["workers"], packed))[0], step_s)
            low, high = (step_s, high) if found > share else (low, step_s)
        own_share, own_stall = waits(ours(task(0, None)), step_s)
        row = {"share": found, "step_s": step_s, "stall_s": stall, "own_share": own_share, "own_stall_s": own_stall, "ratio": own_stall / stall}
        rows.append(row)
        print(f"step {step_s * 1e3:.1f} ms: {best['loader']} waits {found:.3f}, {stall:.2f} s; Fuelrail {own_stall:.3f} s: {row['ratio']:.3f} x", flush=True)
    tell({"batches": BATCHES, "batch": BATCH, "tried": tried, "best": best, "rows": rows}, given.json, "tried", "rows")


if __name__ == "__main__":
    main()
