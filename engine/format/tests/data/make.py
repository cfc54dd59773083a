"""Makes the golden shards of this folder and, beside each, what the package that wrote it reads back.

Run with: pip install xxhash webdataset mosaicml-streaming pyarrow tfrecord numpy pillow; python make.py
Every `NAME.expected` has one line per field: record, key, field, bytes, and the XXH3-64 of the bytes.
"""

import io
import json
import os
import shutil
import struct
import tarfile
from decimal import Decimal

import numpy as np
import webdataset as wds
import xxhash
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
NOISE = np.random.default_rng(7)


def path(name):
    return os.path.join(HERE, name)


def expect(name, records):
    with open(path(name + ".expected"), "w") as out:
        for number, (key, fields) in enumerate(records):
            for field in sorted(fields):
                data = fields[field]
                out.write(f"{number}\t{key}\t{field}\t{len(data)}\t{xxhash.xxh3_64_hexdigest(data)}\n")


def read_tar(name):
    samples = wds.WebDataset(path(name), shardshuffle=False, empty_check=False)
    return [(s["__key__"], {k: v for k, v in s.items() if not k.startswith("__")}) for s in samples]


def noise(size):
    return NOISE.bytes(size)


def tars():
    with wds.TarWriter(path("webdataset.tar"), mtime=0, user="u", group="g") as out:
        for n in range(5):
            sample = {"__key__": f"train/{n:04d}", "jpg": noise(100 + 300 * n), "cls": n, "json": {"n": n}}
            if n == 3:
                del sample["json"]
            out.write(sample)
    expect("webdataset.tar", read_tar("webdataset.tar"))
    for style, name in [(tarfile.GNU_FORMAT, "gnu.tar"), (tarfile.PAX_FORMAT, "pax.tar"), (tarfile.USTAR_FORMAT, "ustar.tar")]:
        with tarfile.open(path(name), "w", format=style, pax_headers={"comment": "all"} if name == "pax.tar" else {}) as out:
            def add(member, data=b"", **rest):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                for key, value in rest.items():
                    setattr(info, key, value)
                out.addfile(info, io.BytesIO(data))
            long = "d" * 90 + "/" + "f" * 60
            add("folder.d", type=tarfile.DIRTYPE)
            add("a.b/1.JPG", noise(10))
            add("a.b/README", noise(600))
            add("a.b/1.seg.png", noise(513))
            add("a.b/1.txt", type=tarfile.LNKTYPE, linkname="a.b/1.JPG")
            add("a.b/1.lnk", type=tarfile.SYMTYPE, linkname="x" * 100)
            add("a.b/1.fifo", type=tarfile.FIFOTYPE)
            add("__meta__/x.json", noise(3))
            add("__skipped.json__", noise(3))
            add("__kept__.json", noise(3))
            add(long + ".jpg", noise(512))
            add(long + ".cls", b"")
            if style != tarfile.USTAR_FORMAT:
                add("e" * 200 + ".jpg", noise(1))
                add("s.lnk", type=tarfile.SYMTYPE, linkname="y" * 300)
            add("hidden/.jpg", noise(2))
            add("no.dot/.jpg", noise(2))
            add("last.", noise(4))
        expect(name, read_tar(name))


def mds():
    from streaming import MDSWriter
    from streaming.base.format.mds.reader import MDSReader

    columns = {
        "array": "ndarray", "array16": "ndarray:int16", "array_fixed": "ndarray:float32:2,3", "bytes": "bytes", "dec": "str_decimal",
        "f16": "float16", "f32": "float32", "f64": "float64", "float": "str_float", "i8": "int8", "i16": "int16", "i32": "int32",
        "i64": "int64", "int": "int", "jpeg": "jpeg", "jpegs": "list[jpeg]", "jpg_array": "jpeg_array", "json": "json", "num": "str_int",
        "pil": "pil", "pkl": "pkl", "png": "png", "text": "str", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    }
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for compression, name in [(None, "mds"), ("zstd:3", "mds-zstd"), ("gz", "mds-gz"), ("snappy", "mds-snappy")]:
        shutil.rmtree(path(name), ignore_errors=True)
        with MDSWriter(out=path(name), columns=columns if name == "mds" else {"n": "int", "text": "str"}, compression=compression,
                       hashes=["xxh3_64"], size_limit=8192) as out:
            for n in range(6):
                out.write({
                    "array": np.full((1, n + 1, 300 * (n % 2) + 1), n, np.int32), "array16": np.full((2, n + 1), -n, np.int16),
                    "array_fixed": np.full((2, 3), n / 2, np.float32), "bytes": noise(50 * n), "dec": Decimal(n) / 3, "f16": n / 4,
                    "f32": n / 4, "f64": n / 3, "float": n / 7, "i8": -n, "i16": -n * 100, "i32": -n * 100000, "i64": -n * 10**12,
                    "int": n * 10**10, "jpeg": picture, "jpegs": [picture] * (n % 3), "jpg_array": [jpeg(picture)] * (n + 1),
                    "json": {"n": [n]}, "num": 10**n, "pil": picture, "pkl": (n,), "png": picture, "text": "é" * (n * 40), "u8": n,
                    "u16": n * 300, "u32": n * 10**9 % 2**32, "u64": 2**63 + n, "n": n,
                })
        with open(os.path.join(path(name), "index.json")) as file:
            index = json.load(file)
        if name == "mds":
            records = []
            for shard in index["shards"]:
                reader = MDSReader.from_json(path(name), None, dict(shard))
                for n in range(len(reader)):
                    records.append(("", split_mds(reader, n)))
                    reader.get_item(n)
            expect("mds", records)
        else:
            # One shard is enough, and what is behind the compression is known by its hash.
            assert len(index["shards"]) == 1


def jpeg(picture):
    out = io.BytesIO()
    picture.save(out, format="JPEG")
    return out.getvalue()


def split_mds(reader, n):
    """The encoded bytes of each column, by the package's own reader with its decoders taken out."""
    from streaming.base.format.mds import reader as module
    decode, module.mds_decode = module.mds_decode, lambda encoding, data: data
    try:
        return reader.decode_sample(reader.get_sample_data(n))
    finally:
        module.mds_decode = decode


def tfrecords():
    from tfrecord.reader import tfrecord_iterator
    from tfrecord.writer import TFRecordWriter

    writer = TFRecordWriter(path("examples.tfrecord"))
    for n in range(4):
        writer.write({
            "image": (noise(20 * n), "byte"), "label": (n, "int"), "box": ([n / 2, -1.5, 3.25], "float"), "ids": (list(range(-n, 300, 97)), "int"),
        })
    writer.close()
    data = [bytes(record) for record in tfrecord_iterator(path("examples.tfrecord"))]
    expect("examples.tfrecord", [("", {"": record}) for record in data])


def parquet():
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({
        "id": pa.array(range(10), pa.int64()), "image": pa.array([noise(5 * n) if n != 3 else None for n in range(10)], pa.binary()),
        "text": pa.array([f"row {n}" for n in range(10)]), "score": pa.array([n / 4 for n in range(10)], pa.float32()),
    })
    pq.write_table(table, path("rows.parquet"), row_group_size=4)
    fields = lambda row: {
        "id": struct.pack("<q", row["id"]), "text": row["text"].encode(), "score": struct.pack("<f", row["score"]),
        **({"image": row["image"]} if row["image"] is not None else {}),
    }
    expect("rows.parquet", [("", fields(row)) for row in pq.read_table(path("rows.parquet")).to_pylist()])


if __name__ == "__main__":
    tars()
    mds()
    tfrecords()
    parquet()
