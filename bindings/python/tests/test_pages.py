"""Every block of Python in the documents runs as it stands, but for the address of the bucket."""

import os
import pathlib
import re
import subprocess

import pytest
from conftest import COMMAND

DOCS = pathlib.Path(__file__).parents[3] / "engine" / "docs"
# MIGRATION.md has a test of its own.
PAGES = sorted(page for page in DOCS.glob("*.md") if "```python" in page.read_text() and page.stem != "MIGRATION")


def blocks(text, language="python"):
    """The blocks of a language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def command(*arguments):
    subprocess.run([COMMAND, *map(os.fspath, arguments)], check=True, stdout=subprocess.DEVNULL)


def filled(root):
    """A bucket with the data sets of the examples, each in the folder of its format."""
    command("serve", "digits", "--count", "2000", "--write-to", root)
    for digit in root.glob("training/*/*.png"):
        digit.with_suffix(".json").write_text("{}")
    for folder, form in [("tar", "webdataset"), ("mds", "mds"), ("tfrecord", "tfrecord"), ("parquet", "parquet")]:
        command("pack", root / "training", root / folder, "--format", form, "--shard-size", "1MiB", "--memory-limit", "64MiB")
    for note in root.glob("training/*/*.json"):
        note.unlink()
    command("serve", "tokens", "--count", "2", "--shard-size", "256KiB", "--write-to", root / "tokens")
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs(page, serve, tmp_path, monkeypatch):
    code = "".join(blocks(page.read_text()))
    if "torch" in code:
        pytest.importorskip("torch", reason="torch is not installed")
    bucket = serve(filled(tmp_path / "root"))
    endpoint = bucket.url.removesuffix("/bucket/")
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "FUELRAIL_ANONYMOUS": "true",
        "FUELRAIL_MEMORY_LIMIT": "768MiB",
        "FUELRAIL_SHARDS": "1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    code = code.replace("http://127.0.0.1:9000", endpoint)
    exec(compile(code, os.fspath(page), "exec"), {"__name__": "__main__"})
