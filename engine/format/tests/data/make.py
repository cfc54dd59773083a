"""Makes the golden shards of this folder and, beside each, what the package that wrote it reads back.

Run with: pip install xxhash webdataset mosaicml-streaming tfrecord numpy pillow pyarrow; python make.py
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


def parquets():
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Its own source of noise: the other files stay as they are.
    noise = np.random.default_rng(8).bytes
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({
        "image": pa.array([{"bytes": noise(20 * n), "path": None if n % 3 else f"{n}.png"} for n in range(10)], image),
        "label": pa.array([n % 4 for n in range(10)], pa.int64()),
        "text": pa.array([None if n == 5 else "é" * n for n in range(10)]),
        "flag": [n % 2 == 0 for n in range(10)], "i32": pa.array([-n for n in range(10)], pa.int32()),
        "u8": pa.array([None if n == 9 else 25 * n for n in range(10)], pa.uint8()),
        "f32": pa.array([n / 3 for n in range(10)], pa.float32()), "f64": [n / 7 for n in range(10)],
        "hash": pa.array([noise(4) for n in range(10)], pa.binary(4)),
        "ids": pa.array([None if n == 2 else list(range(n % 4)) for n in range(10)], pa.list_(pa.int32())),
        "boxes": pa.array([[{"x": n / 2}] * (n % 3) for n in range(10)], pa.list_(pa.struct([("x", pa.float32())]))),
    })
    for name, settings in [
        ("snappy", {}), ("zstd", {"compression": "zstd", "data_page_version": "2.0"}),
        ("gzip", {"compression": "gzip", "use_dictionary": False, "column_encoding": {"label": "DELTA_BINARY_PACKED", "f64": "BYTE_STREAM_SPLIT"}}),
        ("none", {"compression": "none", "data_page_size": 1, "write_batch_size": 1}),
    ]:
        pq.write_table(table, path(f"rows-{name}.parquet"), row_group_size=4, **settings)
    kinds = {"label": "<q", "flag": "<?", "i32": "<i", "u8": "<i", "f32": "<f", "f64": "<d"}
    records = []
    for row in pq.read_table(path("rows-snappy.parquet")).to_pylist():
        image, ids, boxes = row.pop("image"), row.pop("ids"), row.pop("boxes")
        fields = {"image.bytes": image["bytes"], "image.path": image["path"] and image["path"].encode(), "hash": row.pop("hash")}
        text = row.pop("text")
        fields["text"] = text if text is None else text.encode()
        fields["ids"] = ids if ids is None else struct.pack(f"<{len(ids)}i", *ids)
        fields["boxes.x"] = struct.pack(f"<{len(boxes)}f", *[box["x"] for box in boxes])
        fields.update({name: value if value is None else struct.pack(kinds[name], value) for name, value in row.items()})
        records.append(("", {name: value for name, value in fields.items() if value is not None}))
    expect("rows.parquet", records)
    others = pa.table({"n": [1, 2], "words": [["a"], ["b", "c"]], "holes": pa.array([[1, None], []], pa.list_(pa.int64()))})
    pq.write_table(others, path("lists.parquet"))
    pq.write_table(others.select(["n"]), path("brotli.parquet"), compression="brotli")
    pq.write_table(pa.table({"zeros": [bytes(64 << 20)]}), path("bomb.parquet"), compression="zstd", write_statistics=False, use_dictionary=False)
    words = pa.table({"word": ["abc", "abd"]})
    pq.write_table(words, path("delta.parquet"), use_dictionary=False, column_encoding={"word": "DELTA_BYTE_ARRAY"})
    words = pa.table({"x": [f"hello{n:03}" for n in range(100)]})
    pq.write_table(words, path("checksum.parquet"), compression="none", use_dictionary=False, write_page_checksum=True)
    written = open(path("checksum.parquet"), "rb").read()
    with open(path("checksum.parquet"), "wb") as file:
        file.write(written.replace(b"hello050", b"jello050", 1))


def small_parquets():
    """One of each compression and kind of column, in few bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def file(columns, **settings):
        out = io.BytesIO()
        pq.write_table(pa.table(columns), out, write_statistics=False, store_schema=False, **settings)
        return out.getvalue()

    text, numbers, lists = {"t": ["a", None, "a"]}, {"n": [1, 2, 3], "b": [True, None, False]}, {"l": [[1, 2], [], None]}
    return [
        file(text), file(text, compression="zstd", data_page_version="2.0"), file(numbers, compression="gzip", row_group_size=2),
        file(numbers, compression="none", use_dictionary=False), file(lists), file(lists, compression="none", data_page_size=1, write_batch_size=1),
        file({"f": pa.array([b"ab", b"cd"], pa.binary(2)), "x": [0.5, 1.5]}, use_dictionary=False, column_encoding={"x": "BYTE_STREAM_SPLIT", "f": "PLAIN"}),
    ]


def corpora():
    """Seeds of the fuzz targets: small shards, and text that a scan understands."""
    def seeds(target, files):
        folder = os.path.join(HERE, "../../../fuzz/corpus", target)
        os.makedirs(folder, exist_ok=True)
        for number, data in enumerate(files):
            with open(os.path.join(folder, f"{number:02}"), "wb") as out:
                out.write(data)

    def archive(style, *members, tail=b""):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=style) as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return out.getvalue().rstrip(b"\0").ljust(512 * (2 * len(members)), b"\0") + tail

    gnu, pax, ustar = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT
    long = "l" * 120
    cut = lambda data, sizes: [data[:size] for size in sizes]
    whole = archive(gnu, ("1.jpg", b"x"), ("1.txt", b"yz"), ("2.jpg", b""))
    seeds("tar", [
        whole, *cut(whole, [0, 511, 512, 1024, 1600]), archive(pax, (long + ".a", b"1")) + bytes(1024), archive(gnu, (long + ".a", b"1")) + bytes(1024),
        archive(ustar, ("d" * 90 + "/" + long[:60] + ".a", b"1")), bytes(1024), archive(gnu, ("__m__/x.a", b""), ("x/.a", b"")),
    ])

    def index_json(columns, samples, size, **rest):
        names = sorted(columns)
        shard = {
            "version": 2, "format": "mds", "samples": samples, "compression": None, "zip_data": None, "column_names": names,
            "column_encodings": [columns[n][0] for n in names], "column_sizes": [columns[n][1] for n in names], "hashes": [],
            "raw_data": {"basename": "s", "bytes": size, "hashes": {}}, **rest,
        }
        return json.dumps({"version": 2, "shards": [shard]}).encode() + b"\0"

    numbers = lambda *values: struct.pack(f"<{len(values)}I", *values)
    text = {"t": ("str", None)}
    shards = [
        (text, 1, numbers(1, 12, 18) + numbers(2) + b"ab"), (text, 2, numbers(2, 16, 20, 25) + numbers(0) + numbers(1) + b"x"), (text, 0, numbers(0, 8)),
        ({"n": ("int", 8)}, 1, numbers(1, 12, 20) + bytes(8)), ({"a": ("ndarray", None)}, 1, numbers(1, 12, 20) + numbers(4) + b"\x08\x04\x01x"),
        ({"a": ("ndarray:int16:2", 4), "b": ("new", None)}, 1, numbers(1, 12, 20) + numbers(0) + b"abcd"),
        (text, 1, numbers(1, 12, 99)), (text, 9, numbers(1, 12, 18) + numbers(2) + b"ab"), ({}, 1, numbers(1, 12, 12)),
    ]
    zipped = {"compression": "zstd:3", "zip_data": {"basename": "s.zstd", "bytes": 9}}
    seeds("mds", [index_json(columns, n, len(data)) + data for columns, n, data in shards] + [
        index_json(text, 1, 1000, **zipped) + bytes.fromhex("28b52ffd60e8024d00001061610100e32b8005"), b"{}", b'{"version":2,"shards":[]}',
    ])

    with open(path("examples.tfrecord"), "rb") as file:
        frames = file.read()
    seeds("tfrecord", [frames, *cut(frames, [0, 5, 12, 50, 93, 300]), frames[12:89], frames[105:211], frames[227:353], b"\x0a\x00"])
    rows = [
        "key\na", "key,label\na,1\n\nb,2\r\n", "\ufeffkey,offset,length\na,0,1\n", 'key,t\n"a,b","x""y\nz"\n', "key,t\nnone,1", "a,b\n1,2", "",
    ]
    lines = ['{"key":"a"}', '{"key":"a","offset":1,"length":2,"t":"x\\n"}\n\n{"key":"b","o":{"p":[1,null]}}\n', '{"key":"none"}', "[]", '{"key":1']
    seeds("rows", [b"\0" + text.encode() for text in rows] + [b"\1" + text.encode() for text in lines])
    seeds("parquet", [open(path(f"{name}.parquet"), "rb").read() for name in ["lists", "brotli", "delta"]] + small_parquets())
    seeds("tokens", [bytes([length, stride, choice]) + data for length, stride, choice, data in [
        (2, 2, 0, b"aabb\n\nccdd"), (2, 2, 1, b"aabb\n\nccdd"), (2, 2, 2, b"aabb\n\nccdd"), (2, 2, 3, b"aabb\n\nccdd"), (0, 1, 0, b"aa"), (1, 0, 0, b"aa"),
        (9, 1, 3, b"aabb"), (1, 9, 3, b"aabbccddeeffgghhiijjkkllmm"), (1, 1, 0, b""), (1, 1, 0, b"abc"), (3, 1, 3, b"\n\n\n\naabb\n\n"),
    ]])


if __name__ == "__main__":
    tars()
    mds()
    tfrecords()
    parquets()
    corpora()
