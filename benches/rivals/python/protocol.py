"""What every Python rival shares: its arguments, the manifest, and the conversation with the harness.

Only the standard library, so that it can be tested without any rival installed.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Callable, Iterable, NamedTuple
from urllib.parse import quote, unquote, urlsplit


class Object(NamedTuple):
    """One object of the data set."""

    key: str
    size: int


@dataclass
class Task:
    """What the harness asks for."""

    uri: str
    objects: list[Object]
    batch_size: int
    arena: int
    seed: int
    workers: int
    manifest: str = ""
    packed: str | None = None
    hash: bool = False
    passes: int = 0

    @property
    def endpoint(self) -> str:
        """`http://HOST:PORT`."""
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def bucket(self) -> str:
        """The first part of the path."""
        return unquote(urlsplit(self.uri).path.strip("/").split("/")[0])

    @property
    def prefix(self) -> str:
        """The rest of the path; keys of the manifest follow it."""
        rest = unquote(urlsplit(self.uri).path.lstrip("/")).partition("/")[2]
        return rest if not rest or rest.endswith("/") else f"{rest}/"

    def s3_uri(self, item: Object) -> str:
        return f"s3://{self.bucket}/{self.prefix}{item.key}"

    def url(self, item: Object) -> str:
        return self.uri.rstrip("/") + "/" + quote(item.key)

    def shuffled(self) -> list[Object]:
        """The objects in the order of this pass."""
        order = list(self.objects)
        random.Random(self.seed * 1_000_003 + self.passes).shuffle(order)
        return order

    def window(self, most: int) -> int:
        """How many objects a client may hold until all of them are there: `most`, as far as they fit into half the memory the others have."""
        largest = max(item.size for item in self.objects)
        return max(1, min(most, self.arena // 2 // max(1, largest)))

    @property
    def wanted(self) -> int:
        return sum(item.size for item in self.objects)


def arguments(argv: list[str] | None = None) -> Task:
    """Reads the command line that the harness gives every contestant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--manifest", required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--arena", type=int, default=512 << 20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes of a PyTorch DataLoader")
    parser.add_argument("--packed", help="address of the same objects packed into shards")
    parser.add_argument("--hash", action="store_true", help="hash what came; the pass pays for it")
    given = parser.parse_args(argv)
    with open(given.manifest, encoding="utf-8", newline="\n") as file:
        objects = [parse(number, line.rstrip("\n")) for number, line in enumerate(file, 1) if line.strip()]
    if not objects:
        raise SystemExit(f"{given.manifest} names no object")
    return Task(
        given.uri, objects, given.batch_size, given.arena, given.seed, given.workers, given.manifest, given.packed, given.hash
    )


# Clients that insist on credentials get these: the bucket checks no signature, and the metadata service is not asked.
DUMMY_KEYS = {
    "AWS_ACCESS_KEY_ID": "rival",
    "AWS_SECRET_ACCESS_KEY": "rival",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def parse(number: int, line: str) -> Object:
    key, tab, size = line.rpartition("\t")
    if not tab or not size.isdigit():
        raise SystemExit(f"line {number} of the manifest is not key<TAB>size")
    return Object(key, int(size))


def serve(task: Task, batches: Callable[[], Iterable[list]], settings: str) -> None:
    """Serves the harness: for every `go`, runs `batches()` to its end and counts what the trainer got.

    A batch is a list of objects as the loader hands them over: anything with the buffer protocol.
    """
    say("ready")
    for line in sys.stdin:
        if line.strip() != "go":
            raise SystemExit(f"expected `go`, got {line!r}")
        say(json.dumps(measure(task, batches, settings)))
        task.passes += 1


def measure(task: Task, batches: Callable[[], Iterable[list]], settings: str) -> dict:
    """One pass. Raises SystemExit when bytes or objects are missing or too many."""
    got, objects, first = 0, 0, None
    total = SetHash() if task.hash else None
    started = time.perf_counter()
    for batch in batches():
        objects += len(batch)
        got += sum(map(size, batch))
        if first is None:
            first = time.perf_counter() - started
        if total is not None:
            for item in batch:
                total.add(item)
    wall = time.perf_counter() - started
    if (got, objects) != (task.wanted, len(task.objects)):
        raise SystemExit(f"{objects} objects with {got} bytes of {len(task.objects)} with {task.wanted} came")
    return {
        "bytes": got,
        "objects": objects,
        "wall_s": wall,
        "first_batch_us": None if first is None else round(first * 1e6),
        "hash": None if total is None else str(total),
        "settings": settings,
    }


class SetHash:
    """Sum modulo 2**128 of XXH3-128 over each object: the same in any order."""

    def __init__(self) -> None:
        import xxhash  # mosaicml-streaming brings it along; only proof passes need it

        self.digest = xxhash.xxh3_128_intdigest
        self.sum = 0

    def add(self, item) -> None:
        self.sum = (self.sum + self.digest(memoryview(item).cast("B"))) % (1 << 128)

    def __str__(self) -> str:
        return f"{self.sum:032x}"


def size(item) -> int:
    """Bytes of what a loader hands over."""
    return len(item) if isinstance(item, bytes) else memoryview(item).nbytes


def batched(items: Iterable, count: int) -> Iterable[list]:
    """Lists of `count` items, the last one shorter."""
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == count:
            yield batch
            batch = []
    if batch:
        yield batch


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.partition(": ")[2].strip() for line in file if line.startswith("model name")), platform.machine())


def machine() -> dict:
    """Where this was measured, for a result."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {"git_commit": commit, "cores": os.cpu_count(), "kernel": platform.release(), "cpu": processor()}


def rank_environment(rank: int, world: int, port: int, **more) -> dict:
    """This process's environment for one rank of a job on this machine."""
    own = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}
    return {**os.environ, **{name: str(value) for name, value in own.items()}}


def spread(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "count": len(values)}


def tell(result: dict, path: str | None, *details: str) -> None:
    """Prints a result but for these long parts of it, and writes all of it to a file, if one is named."""
    result = {"schema": 1, "machine": machine(), **result}
    print(json.dumps({name: value for name, value in result.items() if name not in details}, indent=1))
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


def say(line: str) -> None:
    print(line, flush=True)


def main(rival: Callable[[Task], None]) -> None:
    """Runs a rival and ends with one line on standard error when it fails, as the protocol wants."""
    try:
        rival(arguments())
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            sys.exit(1)
        raise
    except Exception as error:  # whatever a rival raises is its failure, told in a line
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)
