"""Packs the objects of a manifest into shards for loaders that read nothing else, and finds them again.

    python packing.py tar|mds|litdata MANIFEST SOURCE TARGET [SHARD_MIB]

SOURCE is the folder the manifest's keys are in, TARGET the folder the shards go to, of 128 MiB each unless told otherwise. It is
written beside and moved into place, so that what is there is whole.
"""

import io
import os
import sys
import tarfile
import urllib.request
from pathlib import Path

from protocol import Object, Task, parse

# What both projects recommend lies between 50 and 250 MB; both shuffle whole shards.
SHARD_BYTES = 128 << 20
LIST = "shards.txt"


def pack(kind: str, manifest: Path, source: Path, target: Path) -> None:
    """Writes the shards unless they are there."""
    if target.exists():
        return
    with open(manifest, encoding="utf-8", newline="\n") as file:
        objects = [parse(number, line.rstrip("\n")) for number, line in enumerate(file, 1) if line.strip()]
    beside = target.with_name(f"{target.name}.{os.getpid()}.part")
    {"tar": pack_tar, "mds": pack_mds, "litdata": pack_litdata}[kind](objects, source, beside)
    beside.rename(target)


def pack_tar(objects: list[Object], source: Path, target: Path) -> None:
    """Samples are named by number and end in `.bin`: webdataset splits names at their first point."""
    target.mkdir(parents=True)
    shards, shard, room = [], None, 0
    for number, item in enumerate(objects):
        if shard is None or room < item.size:
            if shard is not None:
                shard.close()
            shards.append(f"{len(shards):06}.tar")
            shard = tarfile.open(target / shards[-1], "w", format=tarfile.USTAR_FORMAT)
            room = SHARD_BYTES
        entry = tarfile.TarInfo(f"{number:09}.bin")
        entry.size = item.size
        shard.addfile(entry, io.BytesIO((source / item.key).read_bytes()))
        room -= item.size
    if shard is not None:
        shard.close()
    (target / LIST).write_text("".join(f"{name}\n" for name in shards))


def pack_mds(objects: list[Object], source: Path, target: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(target), columns={"bin": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for item in objects:
            writer.write({"bin": (source / item.key).read_bytes()})


def pack_litdata(objects: list[Object], source: Path, target: Path) -> None:
    from litdata import optimize

    files = [str(source / item.key) for item in objects]
    optimize(fn=content, inputs=files, output_dir=str(target), chunk_bytes=SHARD_BYTES, num_workers=1)


def content(file: str) -> bytes:
    return Path(file).read_bytes()


def packed_address(task: Task) -> str:
    if not task.packed:
        raise SystemExit("this loader reads shards: give their address with --packed")
    return task.packed.rstrip("/")


def packed_s3(task: Task) -> tuple[str, str]:
    """The endpoint, and the address of the shards as an S3 URI."""
    scheme, _, rest = packed_address(task).partition("://")
    endpoint, _, path = rest.partition("/")
    return f"{scheme}://{endpoint}", f"s3://{path}"


def packed_shards(task: Task) -> list[str]:
    """Addresses of the tar shards."""
    address = packed_address(task)
    with urllib.request.urlopen(f"{address}/{LIST}", timeout=30) as answer:
        return [f"{address}/{name}" for name in answer.read().decode().split()]


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6) or sys.argv[1] not in ("tar", "mds", "litdata"):
        sys.exit(__doc__)
    if sys.argv[5:]:
        SHARD_BYTES = int(sys.argv[5]) << 20
    pack(sys.argv[1], *map(Path, sys.argv[2:5]))
