"""What the tests share: a bucket of the command `fuelrail serve`, whose program `BUCKET_COMMAND` names (a `FUELRAIL_` variable would be a setting)."""

import io
import json
import os
import re
import subprocess
import tarfile
import urllib.parse
import urllib.request

import pytest

COMMAND = os.environ.get("BUCKET_COMMAND", "fuelrail")
# 1000 digits: 28x28x1, labelled by folder.
DIGITS = 1000
# Small, so that the tests run beside others.
SMALL = {"memory_limit": "64MiB", "shards": 1, "pin": False}


class Bucket:
    """A bucket that is served until it is closed."""

    def __init__(self, *what):
        arguments = [COMMAND, "serve", *map(str, what), "--json"]
        self._server = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self._server.stdout.readline())["url"]

    def get(self, key):
        """The bytes of an object."""
        with urllib.request.urlopen(f"{self.url.rstrip('/')}/{key}") as answer:
            return answer.read()

    def keys(self):
        """All keys, sorted."""
        keys, more = [], ""
        while True:
            with urllib.request.urlopen(f"{self.url}?list-type=2&prefix=training/{more}") as answer:
                page = answer.read().decode()
            keys += re.findall("<Key>([^<]*)</Key>", page)
            token = re.search("<NextContinuationToken>([^<]*)</NextContinuationToken>", page)
            if not token:
                return sorted(keys)
            more = "&continuation-token=" + urllib.parse.quote(token[1])

    def close(self):
        self._server.terminate()
        self._server.wait()
        self._server.stdout.close()


def archived(folder, records, shards=2):
    """Writes tar archives of the records, each a dict of its fields."""
    each = len(records) // shards
    for shard in range(shards):
        with tarfile.open(folder / f"part-{shard}.tar", "w") as archive:
            for key in list(records)[shard * each : shard * each + each]:
                for name, data in records[key].items():
                    member = tarfile.TarInfo(f"{key}.{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="session")
def digits():
    bucket = Bucket("digits", "--count", DIGITS)
    yield bucket
    bucket.close()


@pytest.fixture
def serve(request):
    """Serves something for one test."""

    def start(*what):
        bucket = Bucket(*what)
        request.addfinalizer(bucket.close)
        return bucket

    return start
