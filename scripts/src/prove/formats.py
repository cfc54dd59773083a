"""Reads packed shards with the package that defines their format, and compares every field with the file that it was packed from.

python formats.py SOURCE TARGET webdataset|mds|tfrecord|parquet. The source is a folder of KEY.FIELD files below two or more folders.
"""

import json
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
source, target, form = sys.argv[1:]
expected = {}
folders = sorted(os.listdir(source))
for number, folder in enumerate(folders):
    for name in os.listdir(os.path.join(source, folder)):
        stem, field = name.split(".", 1)
        with open(os.path.join(source, folder, name), "rb") as file:
            expected.setdefault(f"{folder}/{stem}", {"cls": number})[field.lower()] = file.read()
with open(os.path.join(target, "pack.json")) as file:
    shards = [shard["name"] for shard in json.load(file)["shards"]]


def webdataset():
    import webdataset as wds

    for sample in wds.WebDataset([os.path.join(target, shard) for shard in shards], shardshuffle=False):
        key, fields = sample["__key__"], {k: v for k, v in sample.items() if not k.startswith("__")}
        fields["cls"] = int(fields["cls"])
        yield key, fields


def mds():
    from streaming import StreamingDataset

    with tempfile.TemporaryDirectory() as cache:
        data = StreamingDataset(remote=target, local=cache, shuffle=False, batch_size=1, validate_hash="xxh3_64")
        for sample in data:
            key = sample.pop("__key__")
            texts = {k: v.encode() if isinstance(v, str) else json.dumps(v).encode() if isinstance(v, dict) else v for k, v in sample.items()}
            yield key, {k: int(v) if k == "cls" else v for k, v in texts.items()}


def tfrecord():
    from tfrecord import tfrecord_loader

    for shard in shards:
        for sample in tfrecord_loader(os.path.join(target, shard), None, {}):
            fields = {k: int(v[0]) if k == "cls" else bytes(v) for k, v in sample.items()}
            yield fields.pop("__key__").decode(), fields


def parquet():
    import pyarrow.parquet as pq

    for shard in shards:
        for sample in pq.read_table(os.path.join(target, shard)).to_pylist():
            yield sample.pop("__key__"), {k: v.encode() if isinstance(v, str) else v for k, v in sample.items()}


fields = size = 0
for key, found in {"webdataset": webdataset, "mds": mds, "tfrecord": tfrecord, "parquet": parquet}[form]():
    wanted = expected.pop(key)
    assert found == wanted, (key, {k: (found.get(k), wanted.get(k)) for k in found.keys() | wanted.keys()})
    fields += len(found)
    size += sum(len(value) for value in found.values() if isinstance(value, bytes))
assert not expected, f"{len(expected)} records were not read, such as {min(expected)}"
print(json.dumps({"fields": fields, "bytes": size, "shards": len(shards)}))
