"""The conversation with the harness, with the standard library alone: `python -m unittest` in this folder."""

import io
import json
import sys
import tarfile
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import packing
import protocol
from protocol import Object, Task

OBJECTS = [Object("a.bin", 3), Object("b/ü.bin", 0), Object("c.bin", 5)]


def task(**changes) -> Task:
    given = dict(uri="http://127.0.0.1:80/my%20set/train/", objects=OBJECTS, batch_size=2, arena=1 << 20, seed=1, workers=0)
    return Task(**{**given, **changes})


def deliver(items):
    """A rival that hands over `items` in batches of two."""
    return lambda: protocol.batched(items, 2)


class Conversation(unittest.TestCase):
    def serve(self, said: str, batches, served: Task | None = None) -> list[str]:
        heard = io.StringIO()
        with mock.patch.object(sys, "stdin", io.StringIO(said)), redirect_stdout(heard):
            protocol.serve(served or task(), batches, "plain")
        return heard.getvalue().splitlines()

    def test_every_go_is_one_pass_and_one_line(self):
        counted = task()
        lines = self.serve("go\ngo\n", deliver([b"123", b"", bytearray(5)]), counted)
        self.assertEqual((len(lines), lines[0], counted.passes), (3, "ready", 2))
        told = json.loads(lines[2])
        self.assertEqual((told["bytes"], told["objects"], told["hash"], told["settings"]), (8, 3, None, "plain"))
        self.assertLessEqual(told["first_batch_us"], told["wall_s"] * 1e6 + 1)

    def test_missing_and_surplus_bytes_end_it(self):
        for items in ([b"123", b""], [b"123", b"", b"1234"], [b"123", b"", b"12345", b"6"]):
            with self.assertRaises(SystemExit) as end:
                self.serve("go\n", deliver(items))
            self.assertIn("of 3 with 8 came", str(end.exception))

    def test_a_wrong_word_ends_it(self):
        with self.assertRaises(SystemExit) as end:
            self.serve("stop\n", deliver([]))
        self.assertIn("expected `go`", str(end.exception))

    def test_whatever_a_rival_raises_is_one_line(self):
        def rival(_):
            raise ValueError("two\nlines")

        said = io.StringIO()
        with mock.patch.object(protocol, "arguments", lambda: None), redirect_stderr(said):
            with self.assertRaises(SystemExit) as end:
                protocol.main(rival)
        self.assertEqual((end.exception.code, said.getvalue()), (1, "ValueError: two lines\n"))


class Tasks(unittest.TestCase):
    def test_the_harness_tail_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            manifest = Path(folder, "set.tsv")
            manifest.write_text("a.bin\t3\nb/ü.bin\t0\nc.bin\t5\n", encoding="utf-8")
            tail = "--uri http://h/b/ --batch-size 7 --arena 99 --seed 5 --manifest".split()
            read = protocol.arguments([*tail, str(manifest)])
            self.assertEqual((read.objects, read.batch_size, read.arena, read.seed), (OBJECTS, 7, 99, 5))
            manifest.write_text("a.bin 3\n")
            with self.assertRaises(SystemExit) as end:
                protocol.arguments([*tail, str(manifest)])
            self.assertEqual(str(end.exception), "line 1 of the manifest is not key<TAB>size")

    def test_addresses(self):
        read = task()
        self.assertEqual((read.endpoint, read.bucket, read.prefix), ("http://127.0.0.1:80", "my set", "train/"))
        self.assertEqual(read.s3_uri(OBJECTS[0]), "s3://my set/train/a.bin")
        self.assertEqual(read.url(OBJECTS[1]), "http://127.0.0.1:80/my%20set/train/b/%C3%BC.bin")
        self.assertEqual(task(uri="http://h:9/b").prefix, "")

    def test_every_pass_has_its_own_order(self):
        many = [Object(str(n), n) for n in range(50)]
        first, second = task(objects=many), task(objects=many, passes=1)
        self.assertEqual(first.shuffled(), task(objects=many).shuffled())
        self.assertNotEqual(first.shuffled(), second.shuffled())
        self.assertEqual(sorted(first.shuffled()), sorted(many))


class Packing(unittest.TestCase):
    def test_tar_shards_hold_every_byte_once(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "set"), Path(folder, "set-tar")
            contents = {"a.bin": b"123", "b/ü.bin": b"", "c.bin": b"45678"}
            for key, content in contents.items():
                (source / key).parent.mkdir(parents=True, exist_ok=True)
                (source / key).write_bytes(content)
            manifest = Path(folder, "set.tsv")
            manifest.write_text("".join(f"{key}\t{len(c)}\n" for key, c in contents.items()), encoding="utf-8")
            with mock.patch.object(packing, "SHARD_BYTES", 4):
                packing.pack("tar", manifest, source, target)
            names = (target / packing.LIST).read_text().split()
            self.assertEqual(names, ["000000.tar", "000001.tar"])
            found = []
            for name in names:
                with tarfile.open(target / name) as shard:
                    found += [shard.extractfile(entry).read() for entry in shard]
            self.assertEqual(found, list(contents.values()))
            packing.pack("tar", manifest, Path(folder, "gone"), target)  # what is there is left alone


if __name__ == "__main__":
    unittest.main()
