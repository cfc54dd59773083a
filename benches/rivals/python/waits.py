"""How long a trainer waits: Fuelrail at the step times at which the best other loader waits a twentieth, a fifth and half of the time.

    fuelrail serve FOLDER --port 9000 --script latency=fixed:20ms
    python waits.py --uri http://127.0.0.1:9000/bucket/ --manifest MANIFEST --packed-root http://127.0.0.1:9000/bucket/ [--json FILE]

Every loader runs as its script here runs it, with 0, 2 and 4 worker processes where it takes any; the best is the one that delivers fastest to a
trainer without a step, after the first four batches. For each share a bisection finds the step time at which the best waits for that share of
the run. Then as many batches go to a trainer with that step time, five times in turn: the best one's, and Fuelrail's, from Python with its defaults, of
the objects and of MDS shards; told are the waits after the first four batches, and with them. Every run is a process of its own: what a loader does beyond the batches that are taken, on threads and in workers, ends with it. Local
caches of the others are in memory, so that no disk slows them down. `FOLDER` holds the objects, whose whole keys the manifest has, and, packed by
`packing.py`, the shards: `tar`, `mds` and `litdata`.
"""

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from pipeline import epoch_of, options, task_of
from protocol import spread, tell
from runtime_aware import ours

WORKERS = (0, 2, 4)
BATCH, ROUNDS = 32, 5
# What `packing.py` calls a payload in MDS.
FIELD = "bin"
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


def waits(batches, given):
    """Seconds until the fourth batch, and seconds and share of the time waited after it, with a trainer that computes for the same time every batch."""
    begun = time.perf_counter()
    for _ in range(4):
        next(batches)
    start, stall = time.perf_counter() - begun, 0.0
    for _ in range(given.batches):
        time.sleep(given.step)
        begun = time.perf_counter()
        next(batches)
        stall += time.perf_counter() - begun
    return {"start_s": start, "stall_s": stall, "share": stall / (stall + given.batches * given.step)}


def ours_packed(task):
    """Fuelrail from the shards that mosaicml-streaming has, in chunks."""
    import fuelrail

    settings = {"format": "mds", "order": "chunks", "seed": task.seed, "memory_limit": task.arena}
    for batch in fuelrail.Loader(task.packed, batch_size=BATCH, epochs=1 << 20, **settings):
        yield [batch.sample(i, FIELD) for i in range(len(batch))]


# Objects, and shards.
OURS = {"fuelrail": (ours, None), "fuelrail from MDS shards": (ours_packed, "mds")}


def one(given):
    """One run, in this process."""
    if given.one in OURS:
        batches, packed = OURS[given.one]
        return waits(batches(task_of(given, BATCH, 0, packed)), given)
    script, packed, _ = OTHERS[given.one]
    batches, settings = batches_of(script, task_of(given, BATCH, given.workers, packed))
    return {**waits(batches, given), "settings": settings}


def all_of(found):
    """What was waited for, the first batches included."""
    return found["start_s"] + found["stall_s"]


def run(given, name, workers, step_s):
    """One run, in a process of its own; what it says, or why it failed."""
    options = ["--uri", given.uri, "--manifest", given.manifest, "--packed-root", given.packed_root]
    options += ["--batches", str(given.batches), "--workers", str(workers), "--step", str(step_s)]
    command = [sys.executable, __file__, *options, "--one", name]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as cache:
        return said_by(command, {**os.environ, "TMPDIR": cache})


def said_by(command, environment):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    try:
        said, failed = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        return {"failure": "it takes longer than a minute"}
    finally:
        # Workers that outlive it, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        return {"failure": (failed.strip().splitlines() or ["nothing said"])[-1]}
    return json.loads(said.strip().splitlines()[-1])


def main():
    parser = options()
    parser.add_argument("--batches", type=int, default=48, help="that are counted: more than what a loader fetches before its fourth")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.2, 0.05], help="of the time that the best waits")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--step", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return print(json.dumps(one(given)))
    tried = []
    for name, (_, _, takes_workers) in OTHERS.items():
        for workers in WORKERS if takes_workers else (0,):
            found = run(given, name, workers, 0.0)
            if "stall_s" in found:
                found = {"batch_s": found["stall_s"] / given.batches, "settings": found["settings"]}
            tried.append({"loader": name, "workers": workers, **found})
            print(tried[-1], flush=True)
    best = min((row for row in tried if "batch_s" in row), key=lambda row: row["batch_s"])
    rows = []
    for share in given.shares:
        low, high = 0.0, 4 * best["batch_s"] / share
        for _ in range(6):
            step_s = (low + high) / 2
            found = run(given, best["loader"], best["workers"], step_s)["share"]
            low, high = (step_s, high) if found > share else (low, step_s)
        rounds = [{name: run(given, name, best["workers"], step_s) for name in (best["loader"], *OURS)} for _ in range(ROUNDS)]
        for name in (best["loader"], *OURS):
            row = {"name": f"{name} at {step_s * 1e3:.1f} ms"}
            row |= {figure: spread([found[name][figure] for found in rounds]) for figure in ("start_s", "stall_s", "share")}
            row["ratio"] = spread([found[name]["stall_s"] / found[best["loader"]]["stall_s"] for found in rounds])
            row["ratio_from_start"] = spread([all_of(found[name]) / all_of(found[best["loader"]]) for found in rounds])
            rows.append(row)
            print(row, flush=True)
    tell({"batches": given.batches, "batch": BATCH, "rounds": ROUNDS, "tried": tried, "best": best, "rows": rows}, given.json, "tried", "rows")


if __name__ == "__main__":
    main()
