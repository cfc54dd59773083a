"""The pairs of MIGRATION.md: what another package's call delivers from a bucket, ours delivers from it too."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from conftest import COMMAND, Bucket
from test_pages import DOCS, blocks

COUNT = 400
# Before and after a block, in a process of its own: `train` keeps what it is given.
BEFORE = """
import hashlib, json, os
seen = []
def train(images, labels):
    assert images.shape[1:] == (1, 28, 28), images.shape
    seen.extend(hashlib.sha256(image.numpy().tobytes() + bytes([label])).hexdigest() for image, label in zip(images, labels, strict=True))
"""
AFTER = "\nprint(json.dumps(sorted(seen)))\n"

torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")


def write_mds(digits, target):
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    columns = {"image": "png", "label": "int"}
    with streaming.MDSWriter(out=os.fspath(target), columns=columns, size_limit=100_000) as shards:
        for path, image in digits:
            shards.write({"image": image, "label": int(path.parent.name)})


def write_tar(digits, target):
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    target.mkdir()
    with webdataset.ShardWriter(f"{target}/digits-%06d.tar", maxcount=COUNT // 4, verbose=False) as shards:
        for path, _ in digits:
            shards.write({"__key__": path.stem, "png": path.read_bytes(), "cls": int(path.parent.name)})


def write_litdata(digits, target):
    litdata = pytest.importorskip("litdata", reason="litdata is not installed")
    to_tensor = torchvision.transforms.functional.pil_to_tensor
    # What the workers of litdata.optimize write with.
    chunks = litdata.streaming.writer.BinaryWriter(os.fspath(target), chunk_bytes=50_000)
    for n, (path, image) in enumerate(digits):
        chunks[n] = {"image": to_tensor(image), "label": int(path.parent.name)}
    chunks.done()
    chunks.merge()


def write_nothing(digits, target):
    pytest.importorskip("s3torchconnector", reason="s3torchconnector is not installed")


PACKAGES = {
    "mosaicml-streaming": ("mds", write_mds),
    "webdataset": ("tar", write_tar),
    "litdata": ("litdata", write_litdata),
    "s3torchconnector": ("none", write_nothing),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_both_sides_deliver_the_same_samples(package, tmp_path):
    from PIL import Image

    folder, write = PACKAGES[package]
    root = tmp_path / "root"
    subprocess.run([COMMAND, "serve", "digits", "--count", str(COUNT), "--write-to", root], check=True, stdout=subprocess.DEVNULL)
    digits = [(path, Image.open(path)) for path in sorted(root.glob("training/*/*.png"))]
    assert len(digits) == COUNT
    write(digits, root / folder)
    section = (DOCS / "MIGRATION.md").read_text().split(f"\n## {package}\n")[1].split("\n## ")[0]
    bucket = Bucket(root, "--writable")
    endpoint = bucket.url.removesuffix("/bucket/")
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
        "FUELRAIL_MEMORY_LIMIT": "128MiB",
        "FUELRAIL_SHARDS": "1",
        "HOME": os.fspath(tmp_path),
    }

    def run(arguments):
        done = subprocess.run(arguments, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def delivered(code):
        # Addresses, and what a server that is not AWS's needs.
        code = code.replace("http://127.0.0.1:9000", endpoint).replace('"/tmp/mds"', repr(os.fspath(tmp_path / "local")))
        config = "s3torchconnector.S3ClientConfig(force_path_style=True)"
        code = code.replace('region="us-east-1"', f'region="us-east-1", endpoint={endpoint!r}, s3client_config={config}')
        code = "import s3torchconnector\n" * ("s3client_config" in code) + code
        if "from litdata" in code:
            # Its faster client speaks HTTPS only; boto3 is its other one.
            code = "import litdata.streaming.downloader as client\nclient._OBSTORE_AVAILABLE = False\n" + code
        return json.loads(run([sys.executable, "-c", BEFORE + code + AFTER]).splitlines()[-1])

    try:
        for line in "".join(blocks(section, "console")).splitlines():
            run([COMMAND, *shlex.split(line.removeprefix("$ fuelrail "))])
        theirs, ours = map(delivered, blocks(section))
    finally:
        bucket.close()
    assert len(ours) == COUNT and ours == theirs
