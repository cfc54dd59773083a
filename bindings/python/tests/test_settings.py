"""Settings as Python has them: numbers and arrays of NumPy, lists of all kinds, and what is refused with what to do."""

import pathlib
import re

import pytest
from conftest import SMALL

import fuelrail

numpy = pytest.importorskip("numpy")


@pytest.fixture
def folder(tmp_path):
    """Eight files of 1000 bytes in two folders."""
    for n in range(8):
        path = tmp_path / "set" / ("en" if n % 2 else "code") / f"{n}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([n]) * 1000)
    return tmp_path / "set"


def ids(folder, **settings):
    with fuelrail.Loader(folder, **{"batch_size": 8, **SMALL, **settings}) as loader:
        return [id for batch in loader for id in batch.ids]


def test_the_size_of_a_batch_has_a_default_a_variable_and_a_file(folder, tmp_path, monkeypatch):
    def size(**settings):
        with fuelrail.Loader(folder, **SMALL, **settings) as loader:
            return re.search("batches of ([0-9]+)", repr(loader))[1]

    (tmp_path / "f.toml").write_text("batch_size = 5\n")
    assert (size(), size(config=tmp_path / "f.toml"), size(batch_size=numpy.int64(3))) == ("64", "5", "3")
    monkeypatch.setenv("FUELRAIL_BATCH_SIZE", "7")
    assert size() == "7"


def test_what_numpy_and_python_have_for_truths_lists_and_weights(folder):
    plain = list(range(8))
    assert ids(folder, shuffle=numpy.bool_(False)) == plain != ids(folder, shuffle=numpy.True_)
    assert ids(folder, shuffle=False, memory_limit=64e6) == plain
    folders = ["code", "en"]
    for classes in [folders, tuple(folders), numpy.array(folders), iter(folders), (name for name in folders), {"code": 0, "en": 1}.keys()]:
        with fuelrail.Loader(folder, **SMALL, classes=classes) as loader:
            assert loader.classes == folders
    assert ids(folder, mixture={"en/": 9, "code/": numpy.float64(1)}) == ids(folder, mixture="en/=9,code/=1")


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"classes": {"en", "code"}}, TypeError, "classes is a set"),
        ({"classes": {"en": 1}}, TypeError, "classes is a dict"),
        ({"memory_limit": 1.5}, fuelrail.UsageError, "memory_limit is 1.5 bytes"),
        ({"memory.limit": numpy.float32(0.5)}, fuelrail.UsageError, "memory.limit is 0.5 bytes"),
        ({"device": 0, "device_depth": -1}, fuelrail.UsageError, "device_depth is -1"),
        ({"config": "/nowhere.toml"}, fuelrail.NotFoundError, "/nowhere.toml"),
        ({"manifest": pathlib.Path("/nowhere.csv")}, fuelrail.NotFoundError, "/nowhere.csv"),
        ({"decode": "1x4x1", "decode_with": 3}, TypeError, "pass a function"),
    ],
)
def test_what_is_refused(folder, settings, kind, message):
    with pytest.raises(kind, match=message) as raised:
        fuelrail.Loader(folder, **SMALL | settings)
    assert kind is TypeError or raised.value.hint


def test_one_uri_and_ids_from_zero(folder):
    with pytest.raises(TypeError, match="uri is a list; .*braces"):
        fuelrail.Loader([folder, folder])
    with fuelrail.Loader(folder, **SMALL) as loader:
        with pytest.raises(fuelrail.UsageError, match="id of a sample is -1"):
            loader.record_key(-1)
        with pytest.raises(IndexError):
            loader.record_key(8)


@pytest.mark.parametrize("sizes", [[1000], [900, 5000, 70, 2000, 4999]])
def test_the_least_memory_has_room_for_the_batch_that_a_loop_still_holds(tmp_path, sizes):
    for n in range(200):
        (tmp_path / f"{n:03}.bin").write_bytes(bytes(sizes[n % len(sizes)]))
    settings = {"batch_size": 7, "epochs": 3, **SMALL}
    with pytest.raises(fuelrail.BudgetError) as raised:
        fuelrail.Loader(tmp_path, **{**settings, "memory_limit": 1000})
    need = int(re.search("raise memory_limit to ([0-9]+)", raised.value.hint)[1])
    with fuelrail.Loader(tmp_path, **{**settings, "memory_limit": need}) as loader:
        samples = 0
        for batch in loader:
            samples += len(batch)
    assert samples == 600
