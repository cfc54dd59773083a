"""What is saved when a node hands over before it goes: its blocks that the bucket is not asked for again, and the epochs after it.

    fuelrail serve photos --count 8000 --script latency=fixed:20ms,bandwidth_total=50MiB --port 9000
    python handover.py --uri http://127.0.0.1:9000/bucket/ --count 8000 --dir /tmp/nodes [--rounds 3] [--json FILE]

Three ranks on this machine, each with a folder as its disk, read until the three hold the set together. Then one goes: killed, after it has handed
over for as long as it takes, or for a moment that is too short for all of its blocks. The other two start anew, as launchers do, and read two
epochs. Steps take 40 ms. Told is what the bucket was asked for then, beside the blocks that the one had, and how long the two waited for batches.
"""

import argparse
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time

from protocol import spread, tell

NODES = "abc"
LEAVES = 1
STEP_S = 0.04
# Epochs until the disks hold the set: blocks that come while a disk is behind are kept in a later one.
EPOCHS_MAX = 12


def one(given):
    """A rank, in a process of its own: reads an epoch or hands over whenever it is told to."""
    import fuelrail

    loader = fuelrail.Loader(
        given.uri, batch_size=32, epochs=1000, seed=5, rank=given.rank, world=len(given.peers), peers=given.peers,
        peer_secret_file=f"{given.dir}/secret", spill_dirs=[f"{given.dir}/{given.peers[given.rank][0]}"], spill_floor_bytes=1,
        listing_dir=f"{given.dir}/listing", memory_limit="128MiB", shards=1, pin=False,
    )
    batches = iter(loader)
    print("stands", flush=True)
    for order in sys.stdin:
        if order.startswith("leave"):
            begun = time.monotonic()
            found = loader.hand_over(float(order.split()[1]))
            found["s"] = time.monotonic() - begun
        else:
            before = loader.stats()
            for _ in range(loader.batches_per_epoch):
                next(batches)
                time.sleep(STEP_S)
            after = loader.stats()
            found = {name: after[name] - before[name] for name in ("requests", "data_wait_s")}
        print(json.dumps(found), flush=True)


class Job:
    """The ranks of some nodes."""

    def __init__(self, given, nodes):
        held = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
        peers = [f"{node}=127.0.0.1:{at.getsockname()[1]}" for node, at in zip(nodes, held)]
        for at in held:
            at.close()
        command = [sys.executable, __file__, "--uri", given.uri, "--dir", given.dir, "--count", str(given.count), "--peers", *peers, "--rank"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.ranks = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(len(nodes))]
        for rank in self.ranks:
            if rank.stdout.readline() != "stands\n":
                raise SystemExit("a rank failed: see above")

    def told(self, order, ranks=None):
        """What these ranks, or all, answer to an order."""
        ranks = ranks or self.ranks
        for rank in ranks:
            rank.stdin.write(order + "\n")
            rank.stdin.flush()
        return [json.loads(rank.stdout.readline()) for rank in ranks]

    def epoch(self):
        """Requests to the bucket of an epoch, and how long a rank waited for its batches, seconds."""
        answers = self.told("epoch")
        return sum(answer["requests"] for answer in answers), max(answer["data_wait_s"] for answer in answers)

    def end(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def blocks(given, node):
    """Blocks on a node's disk."""
    listed = subprocess.run([given.fuelrail, "cache", "ls", "--json", f"{given.dir}/{node}"], stdout=subprocess.PIPE, check=True)
    return sum(segment["blocks"] for at in json.loads(listed.stdout)["directories"] for segment in at["segments"])


def round_of(given, leave_s):
    """One node goes, and what that costs."""
    shutil.rmtree(given.dir, ignore_errors=True)
    for node in NODES:
        pathlib.Path(given.dir, node).mkdir(parents=True)
    pathlib.Path(given.dir, "secret").write_text("a-measurement-hides-nothing")
    job = Job(given, NODES)
    for _ in range(EPOCHS_MAX):
        settled = job.epoch()
        if sum(blocks(given, node) for node in NODES) >= given.count * 0.99:
            break
    else:
        raise SystemExit("the disks never hold the set")
    handed = job.told(f"leave {leave_s}", [job.ranks[LEAVES]])[0] if leave_s else {}
    # The others write what came last.
    time.sleep(2)
    job.end()
    found = {"held": blocks(given, NODES[LEAVES]), "settled_requests": settled[0], "settled_wait_s": settled[1]}
    found.update({f"handed_{name}": value for name, value in handed.items()})
    job = Job(given, NODES.replace(NODES[LEAVES], ""))
    for name in ("first", "second"):
        found[f"{name}_requests"], found[f"{name}_wait_s"] = job.epoch()
    job.end()
    found["saved"] = 1 - (found["first_requests"] + found["second_requests"]) / found["held"]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, required=True, help="objects of the set")
    parser.add_argument("--seconds", type=float, default=25, help="how long it may hand over, of a notice of 30 s")
    parser.add_argument("--short", type=float, default=0.5, help="the moment that is too short")
    parser.add_argument("--fuelrail", default="fuelrail", help="the command")
    parser.add_argument("--peers", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    given = parser.parse_args()
    if given.peers:
        return one(given)
    runs = {"killed": None, "handed over": given.seconds, "for a moment": given.short}
    found = {name: [] for name in runs}
    for _ in range(given.rounds):
        for name, leave_s in runs.items():
            found[name].append(round_of(given, leave_s))
            print(name, found[name][-1], flush=True)
    rows = [{"run": name, **{of: spread([row[of] for row in rounds]) for of in rounds[0]}} for name, rounds in found.items()]
    shutil.rmtree(given.dir)
    tell({"nodes": len(NODES), "objects": given.count, "seconds": given.seconds, "short_s": given.short, "rows": rows}, given.json, "rows")


if __name__ == "__main__":
    main()
