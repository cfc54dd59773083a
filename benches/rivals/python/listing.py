"""What a large listing costs the processes of one machine: seconds until a loader stands, and memory that each has for itself.

    fuelrail serve digits --count 10000000 --port 9000
    python listing.py --uri http://127.0.0.1:9000/bucket/ --dir /tmp/listings [--processes 4] [--shared-only] [--json FILE]

Processes start together three times: without a directory for listings, where each lists the bucket; with an empty one, where one lists and the
others wait for what it saves; and with that. Told are, for every process, the seconds that `fuelrail.Loader(...)` took, its anonymous memory without
the arena, and how much of the listing's file it has mapped, which all of them share.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from protocol import spread, tell


def one(uri, directory):
    """Opens a loader, in a process of its own, and waits until all others stand, too."""
    import fuelrail
    import numpy

    from soak import anonymous_mib

    begun = time.monotonic()
    loader = fuelrail.Loader(uri, batch_size=32, memory_limit="64MiB", shards=1, listing_dir=directory or None)
    opened_s = time.monotonic() - begun
    batch = next(iter(loader))
    print("stands", flush=True)
    sys.stdin.readline()
    mapped, is_listing = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as file:
        for line in file:
            word, *values = line.split()
            if not word.endswith(":"):
                is_listing = line.rstrip().endswith(".listing")
            elif word == "Rss:" and is_listing:
                mapped += int(values[0])
    own = anonymous_mib(numpy.frombuffer(batch.sample(0), "uint8").ctypes.data)
    print(json.dumps({"opened_s": opened_s, "own_mib": own, "mapped_mib": mapped / 1024}), flush=True)


def together(count, uri, directory):
    """What each of so many processes says that start at the same time."""
    command = [sys.executable, __file__, "--uri", uri, "--one", "--dir", directory]
    begun = time.monotonic()
    all_of_them = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for process in all_of_them:
        if process.stdout.readline() != "stands\n":
            raise SystemExit("a process failed: see above")
    wall_s = time.monotonic() - begun
    found = [json.loads(process.communicate("\n")[0]) for process in all_of_them]
    return {"wall_s": wall_s, **{name: spread([row[name] for row in found]) for name in found[0]}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--shared-only", action="store_true", help="leave the first out, which takes the memory of all")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    given = parser.parse_args()
    if given.one:
        return one(given.uri, given.dir)
    shutil.rmtree(given.dir, ignore_errors=True)
    os.mkdir(given.dir)
    rows = []
    for name, directory in [("each lists", ""), ("one lists", given.dir), ("kept", given.dir)][given.shared_only :]:
        rows.append({"run": name, **together(given.processes, given.uri, directory)})
        print(rows[-1], flush=True)
    (file,) = pathlib.Path(given.dir).rglob("*.listing")
    tell({"processes": given.processes, "file_mib": file.stat().st_size / (1 << 20), "rows": rows}, given.json, "rows")


if __name__ == "__main__":
    main()
