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


def packed(folder):
    """Tar shards of records with the fields of the examples."""
    for n in range(100):
        for field, text in [("jpg", f"picture {n}"), ("json", "{}"), ("cls", str(n % 10))]:
            path = folder / "source" / str(n % 2) / f"{n:03}.{field}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    source, target = folder / "source", folder / "shards"
    pack = [COMMAND, "pack", source, target, "--format", "webdataset", "--memory-limit", "64MiB"]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    return target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs(page, serve, tmp_path, monkeypatch):
    code = "".join(blocks(page.read_text()))
    if "torch" in code:
        pytest.importorskip("torch", reason="torch is not installed")
    digits, shards = serve("digits", "--count", 2000), serve(packed(tmp_path))
    code = code.replace("http://127.0.0.1:9000/bucket/", digits.url).replace("s3://bucket/shards/", shards.url)
    assert "s3://" not in code and ":9000" not in code
    monkeypatch.setenv("FUELRAIL_MEMORY_LIMIT", "128MiB")
    monkeypatch.setenv("FUELRAIL_SHARDS", "1")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, os.fspath(page), "exec"), {"__name__": "__main__"})
