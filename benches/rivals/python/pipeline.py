"""Whole pipelines: JPEG files of a bucket to random-resized crops of 224 x 224 in batches, Fuelrail beside other loaders with torchvision.

    fuelrail serve FOLDER --port 9000
    python pipeline.py --uri http://127.0.0.1:9000/bucket/ --manifest MANIFEST --packed-root http://127.0.0.1:9000/bucket/ [--json FILE]

Every loader runs as its script here runs it, each time in a process of its own, with 0, 2 and 4 worker processes; they decode and crop where they
fetch, and collate to one tensor. Fuelrail decodes on its threads. Told are images a second of an epoch after a first one, and the processor time
an image of the process with its workers. `FOLDER` holds the objects, whose whole keys the manifest has, and, packed by `packing.py`, the shards: `tar`, `mds` and `litdata`.
"""

import argparse
import importlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

from protocol import Task, arguments, tell

SIDE, BATCH, WORKERS = 224, 64, (0, 2, 4)
# Script, shards it reads, and what hands over a sample there.
OTHERS = {
    "PyTorch DataLoader + boto3": ("dataloader_boto3", None, "Bucket.__getitem__"),
    "webdataset": ("webdataset_http", "tar", "payload"),
    "mosaicml-streaming": ("mosaicml_s3", "mds", "Payload.__getitem__"),
    "litdata": ("litdata_s3", "litdata", "StreamingDataset.__getitem__"),
}


def epoch_of(module, task):
    """The epochs of a script, without the harness it speaks to, and its settings."""
    kept = []
    module.serve = lambda task, batches, settings: kept.append((batches, settings))
    module.run(task)
    return kept[0]


def cropped(data):
    """A random-resized crop, as torchvision's users write it."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import RandomResizedCrop

    torch.set_num_threads(1)
    pixels = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return RandomResizedCrop(SIDE, antialias=True)(decode_jpeg(pixels, mode=ImageReadMode.RGB))


def other(name, task):
    import torch

    script, _, place = OTHERS[name]
    module = importlib.import_module(script)
    owner, _, attribute = place.rpartition(".")
    owner = getattr(module, owner) if owner else module
    plain = getattr(owner, attribute)
    setattr(owner, attribute, lambda *arguments: cropped(plain(*arguments)))
    # What collates there.
    module.list = torch.stack
    return epoch_of(module, task)


def ours(task):
    import fuelrail

    settings = {"decode": f"{SIDE}x{SIDE}x3", "decode_fit": "random-crop", "memory_limit": task.arena, "pin": False}
    loader = fuelrail.Loader(task.uri, manifest=task.manifest, batch_size=task.batch_size, epochs=1 << 20, seed=task.seed, **settings)
    batches, steps = iter(loader), -(-len(task.objects) // task.batch_size)
    return lambda: (next(batches).numpy() for _ in range(steps)), f"fuelrail {fuelrail.__version__}, defaults"


def cpu_s():
    """Of this process, of its children that have ended, and of those that live on."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    living = [child for task in pathlib.Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()]
    ticks = [int(field) for child in living for field in pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]]
    return sum(one.ru_utime + one.ru_stime for one in used) + sum(ticks) / os.sysconf("SC_CLK_TCK")


def one(name, task):
    """Runs one loader in this process."""
    epoch, settings = other(name, task) if name in OTHERS else ours(task)
    for measured in (False, True):
        begun, cpu, images = time.perf_counter(), cpu_s(), 0
        for batch in epoch():
            images += len(batch)
            assert tuple(sorted(batch.shape[1:])) == (3, SIDE, SIDE), batch.shape
        assert images == len(task.objects), f"{images} images of {len(task.objects)}"
        task.passes += 1
    wall_s = time.perf_counter() - begun
    return {"images_per_s": images / wall_s, "cpu_ms_per_image": (cpu_s() - cpu) * 1e3 / images, "settings": settings}


def options():
    """The command line of the scripts that run many loaders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--packed-root", required=True)
    parser.add_argument("--json")
    return parser


def task_of(given, batch, workers, packed) -> Task:
    """What a loader's own script would be given; `packed` names the shards that it reads, if it does."""
    argv = ["--uri", given.uri, "--manifest", given.manifest, "--batch-size", str(batch), "--workers", str(workers)]
    return arguments(argv + (["--packed", given.packed_root + packed + "/"] if packed else []))


def main():
    parser = options()
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        packed = OTHERS[given.one][1] if given.one in OTHERS else None
        print(json.dumps(one(given.one, task_of(given, BATCH, given.workers, packed))))
        return
    rows = []
    for name, workers in [("Fuelrail", 0)] + [(name, workers) for name in OTHERS for workers in WORKERS]:
        ran = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", name, "--workers", str(workers)], capture_output=True, text=True)
        # One that fails is told, and the others go on.
        row = json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else {"failure": (ran.stderr.strip().splitlines() or ["nothing said"])[-1]}
        rows.append({"loader": name, "workers": workers, **row})
        print(rows[-1], flush=True)
    tell({"batch": BATCH, "side": SIDE, "rows": rows}, given.json, "rows")


if __name__ == "__main__":
    main()
