"""What is saved when a node hands over before it goes: its blocks that the bucket is not asked for again, and the epochs behind it.

    fuelrail serve photos --count 40000 --script latency=fixed:20ms --port 9000
    python handover.py --uri http://127.0.0.1:9000/bucket/ --dir /tmp/nodes [--rounds 3] [--json FILE]

Three ranks on this machine, each with a disk of its own, read until their disks hold the set together. Then one goes: killed, after it has handed
over within the given seconds, or after it has done so at a limited rate, which has no time for all of its blocks. The other two start anew, as
launchers do, and read two epochs.
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
# Epochs until the disks hold the set: blocks that come while a disk is behind are kept in a later one.
EPOCHS_MAX = 12


def one(given):
    """A rank, in a process of its own: reads an epoch or hands over whenever it is told to."""
    import fuelrail

    settings = {"peer_rate_limit": given.rate} if given.rate else {}
    loader = fuelrail.Loader(
        given.uri, batch_size=32, epochs=1000, seed=5, rank=given.rank, world=len(given.peers), peers=given.peers,
        peer_secret_file=f"{given.dir}/secret", spill_dirs=[f"{given.dir}/{given.peers[given.rank][0]}"], spill_floor_bytes=1,
        listing_dir=f"{given.dir}/listing", memory_limit="384MiB", shards=1, pin=False, **settings,
    )
    batches = iter(loader)
    print("stands", flush=True)
    for order in sys.stdin:
        begun, before = time.monotonic(), loader.stats()["requests"]
        if order.startswith("leave"):
            found = loader.hand_over(float(order.split()[1]))
        else:
            for _ in range(loader.batches_per_epoch):
                next(batches)
            found = {"requests": loader.stats()["requests"] - before}
        print(json.dumps({"s": time.monotonic() - begun, **found}), flush=True)


class Job:
    """The ranks of some nodes."""

    def __init__(self, given, nodes, rate=None):
        held = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
        peers = [f"{node}=127.0.0.1:{at.getsockname()[1]}" for node, at in zip(nodes, held)]
        for at in held:
            at.close()
        command = [sys.executable, __file__, "--uri", given.uri, "--dir", given.dir, "--peers", *peers, "--rate", rate or "", "--rank"]
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
        """Requests to the bucket of an epoch, and its seconds."""
        answers = self.told("epoch")
        return sum(answer["requests"] for answer in answers), max(answer["s"] for answer in answers)

    def end(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def blocks(given, node):
    """Blocks on a node's disk."""
    listed = subprocess.run([given.fuelrail, "cache", "ls", "--json", f"{given.dir}/{node}"], stdout=subprocess.PIPE, check=True)
    return sum(segment["blocks"] for at in json.loads(listed.stdout)["directories"] for segment in at["segments"])


def round_of(given, leave_s, rate):
    """One node goes, and what that costs."""
    shutil.rmtree(given.dir, ignore_errors=True)
    for node in NODES:
        pathlib.Path(given.dir, node).mkdir(parents=True)
    pathlib.Path(given.dir, "secret").write_text("a-measurement-hides-nothing")
    job = Job(given, NODES, rate)
    epochs = []
    while not epochs or (epochs[-1][0] > epochs[0][0] / 100 and len(epochs) < EPOCHS_MAX):
        epochs.append(job.epoch())
    handed = job.told(f"leave {leave_s}", [job.ranks[LEAVES]])[0] if leave_s else {}
    # The others write what came last.
    time.sleep(2)
    job.end()
    found = {"set": epochs[0][0], "held": blocks(given, NODES[LEAVES]), "settled_s": epochs[-1][1], **{f"handed_{name}": n for name, n in handed.items()}}
    job = Job(given, NODES.replace(NODES[LEAVES], ""))
    for name in ("first", "second"):
        found[f"{name}_requests"], found[f"{name}_s"] = job.epoch()
    job.end()
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25, help="how long it hands over, of a notice of 30 s")
    parser.add_argument("--rate", default="30MB", help="bytes a second, in the runs with a limited rate")
    parser.add_argument("--fuelrail", default="fuelrail", help="the command")
    parser.add_argument("--peers", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    given = parser.parse_args()
    if given.peers:
        return one(given)
    runs = {"killed": (None, None), "handed over": (given.seconds, None), "at a limited rate": (given.seconds, given.rate)}
    found = {name: [] for name in runs}
    for _ in range(given.rounds):
        for name, (leave_s, rate) in runs.items():
            found[name].append(round_of(given, leave_s, rate))
            print(name, found[name][-1], flush=True)
    rows = []
    for name, rounds in found.items():
        # Of the blocks that it kept, those that the bucket is not asked for.
        saved = [1 - row["first_requests"] / row["held"] for row in rounds]
        rows.append({"run": name, "saved": spread(saved), **{of: spread([row[of] for row in rounds]) for of in rounds[0]}})
    shutil.rmtree(given.dir)
    tell({"nodes": len(NODES), "seconds": given.seconds, "rate": given.rate, "rows": rows}, given.json, "rows")


if __name__ == "__main__":
    main()
