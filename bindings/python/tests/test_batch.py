"""Batches: views that keep their memory, arrays, DLPack, and records of shards with their fields."""

import gc
import weakref

import pytest
from conftest import DIGITS, SMALL, archived

import fuelrail


def loader_of(url, **settings):
    return fuelrail.Loader(url, **{"batch_size": 32, **SMALL, **settings})


def test_views_are_read_only_typed_and_without_copies(digits):
    with loader_of(digits.url + "training/") as loader:
        batch = next(loader)
        for view, format in [(batch.ids, "Q"), (batch.labels, "i"), (batch.weights, "f"), (batch.sample(0), "B")]:
            assert isinstance(view, memoryview) and view.readonly and view.format == format and view.contiguous
        assert len(batch) == len(batch.ids) == len(batch.labels) == len(batch.weights) == len(batch.keys) == 32
        assert set(batch.weights) == {1.0} and batch.shape is None
        with pytest.raises(TypeError):
            batch.sample(0)[0] = 1
        for i in [32, -1]:
            with pytest.raises(IndexError, match="of a batch of 32: .* not from the end"):
                batch.sample(i)
        for use in [list, lambda batch: batch[0]]:
            with pytest.raises(TypeError, match=r"batch.sample\(i\)"):
                use(batch)
        with pytest.raises(KeyError):
            batch.sample(0, "jpg")
        with pytest.raises(KeyError):
            batch["jpg"]
        assert batch.fields(0) == {}
        with pytest.raises(BufferError, match="decode"):
            batch.__dlpack__()
        with pytest.raises(BufferError):
            batch.numpy()


def test_views_outlive_batch_and_loader(digits):
    loader = loader_of(digits.url + "training/")
    batch = next(loader)
    key, view, batch_gone, loader_gone = batch.keys[3], batch.sample(3), weakref.ref(batch), weakref.ref(loader)
    batch.release()
    with pytest.raises(fuelrail.UsageError, match="released"):
        len(batch)
    del batch
    loader.close()
    del loader
    gc.collect()
    assert batch_gone() is None and loader_gone() is None
    assert bytes(view) == digits.get(key)


def test_memory_comes_back(digits):
    settings = {"batch_size": 8, "memory_limit": "24MiB", "epochs": 8}
    with loader_of(digits.url + "training/", **settings) as loader:
        count = 0
        for batch in loader:
            with batch:
                view = batch.sample(0)
            count += len(view) > 0
        assert count == 8 * DIGITS / 8 == 1000
        del batch, view
        assert loader.stats()["batches"] == 1000


def test_batches_that_are_kept_are_an_error_and_not_a_hang(digits):
    settings = {"batch_size": 100, "memory_limit": "16MiB", "epochs": 1000, "decode": "28x28x1"}
    with loader_of(digits.url + "training/", **settings) as loader:
        kept = []
        with pytest.raises(fuelrail.BudgetError, match="batches you hold leave no room") as raised:
            kept.extend(loader)
        assert "memory_limit" in raised.value.hint
        # It loses nothing: the run goes on as soon as there is room.
        position, held = loader.state_dict()["position"], len(kept)
        kept.clear()
        assert position == held * 100 % DIGITS and next(loader).step == held % 10


def test_decoded_batches_are_arrays(digits):
    numpy = pytest.importorskip("numpy")
    with loader_of(digits.url + "training/", decode="28x28x1") as loader:
        batch = next(loader)
        images = batch.numpy()
        assert images.shape == batch.shape == (32, 28, 28, 1) and images.dtype == numpy.uint8
        assert not images.flags.writeable and images.flags.c_contiguous
        assert bytes(images[5]) == bytes(batch.sample(5))
        assert numpy.asarray(batch.ids).dtype == numpy.uint64 and numpy.asarray(batch.labels).dtype == numpy.int32
        assert numpy.asarray(batch).shape == images.shape and numpy.asarray(batch, dtype="float32").dtype == numpy.float32
        # Without a copy: the same memory.
        address = images.__array_interface__["data"][0]
        assert numpy.asarray(batch).__array_interface__["data"][0] == address != numpy.array(batch).__array_interface__["data"][0]
        shared = numpy.from_dlpack(batch)
        assert shared.__array_interface__["data"][0] == address and not shared.flags.writeable
        assert numpy.asarray(batch.sample(1)).__array_interface__["data"][0] == address + 784
        copied = numpy.from_dlpack(batch, copy=True)
        assert copied.__array_interface__["data"][0] != address
        assert (copied == images).all() and (shared == images).all()
        batch.release()
        del batch
        loader.close()
        assert (copied == images).all() and (shared == images).all()


def test_dlpack_capsules(digits):
    with loader_of(digits.url + "training/", decode="28x28x1") as loader:
        batch = next(loader)
        assert batch.__dlpack_device__() == (1, 0)
        assert '"dltensor"' in repr(batch.__dlpack__())
        assert '"dltensor_versioned"' in repr(batch.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False))
        for refused in [{"dl_device": (2, 0)}, {"stream": 1}]:
            with pytest.raises(BufferError, match="CPU"):
                batch.__dlpack__(**refused)
        # A capsule that no consumer takes frees what it holds.
        gone = weakref.ref(batch)
        for _ in range(1000):
            batch.__dlpack__(), batch.__dlpack__(max_version=(1, 0))
        del batch
        assert gone() is None
        for batch in loader:
            assert sum(batch.sample(0)) > 0


def test_records_of_a_tar_archive(tmp_path, serve):
    written = {f"{n:04}": {"png": bytes([n]) * (n + 1), "cls": str(n % 7).encode()} for n in range(40)}
    written["0013"]["txt"] = b"only here"
    archived(tmp_path, written)
    seen = {}
    with loader_of(serve(tmp_path).url, format="webdataset", label_field="cls", batch_size=16) as loader:
        assert loader.samples == 40
        for batch in loader:
            for i, (key, label) in enumerate(zip(batch.keys, batch.labels, strict=True)):
                fields = {name: bytes(field) for name, field in batch.fields(i).items()}
                assert fields == {name: bytes(batch.sample(i, name)) for name in fields}
                assert str(label).encode() == fields["cls"] == bytes(batch["cls"][i])
                seen[key] = fields
            text = [key in ("0013",) or key.endswith("0013") for key in batch.keys]
            if any(text):
                assert [field is not None for field in batch["txt"]] == text
    assert [*seen.values()] != [*written.values()], "shuffled"
    assert {key[-4:]: fields for key, fields in seen.items()} == written


def test_other_fields_come_with_what_is_decoded(tmp_path, serve, digits):
    digit = digits.get(digits.keys()[0])
    written = {f"{n:04}": {"png": b"no picture" if n == 17 else digit, "txt": f"digit {n}".encode()} for n in range(40)}
    written["0013"]["two.words"] = b"only here"
    archived(tmp_path, written)
    url = serve(tmp_path).url
    settings = {"format": "webdataset", "decode": "28x28x1", "batch_size": 16, "bad_samples": "skip"}
    with loader_of(url, **settings) as loader:
        assert next(loader).fields(0) == {}, "none that was not asked for"
    seen = []
    with loader_of(url, fields=["txt", "two.words"], **settings) as loader:
        for batch in loader:
            assert batch.shape == (len(batch), 28, 28, 1)
            keys = [key[-4:] for key in batch.keys]
            assert [str(text, "utf-8") for text in batch["txt"]] == [f"digit {int(key)}" for key in keys]
            for i, key in enumerate(keys):
                expected = {name: data for name, data in written[key].items() if name != "png"}
                assert {name: bytes(view) for name, view in batch.fields(i).items()} == expected
            with pytest.raises(KeyError):
                batch["png"]
            seen += keys
        # A view outlives the batch and the loader.
        view = batch.sample(0, "txt")
        assert view.readonly
        del batch
    assert bytes(view).startswith(b"digit ") and sorted(seen) == sorted(written.keys() - {"0017"})
