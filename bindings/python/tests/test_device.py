"""Batches on a GPU: every test runs under the driver of the Rust tests (`CUDA_TEST_DRIVER` names its library), in a process of its own."""

import ctypes.util
import os
import subprocess
import sys

import pytest
from conftest import SMALL, archived

import fuelrail

DRIVER = os.environ.get("CUDA_TEST_DRIVER")

# Reads a tensor behind a capsule, as a framework does.
READER = """
import ctypes, gc, os, sys, types
import numpy
import fuelrail

URL = sys.argv[1]
DECODED = dict(batch_size=50, decode="28x28x1", memory_limit="64MiB", shards=1, pin=False)
library = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    assert getattr(library, name)(*arguments) == 0, name


device, context = ctypes.c_int(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("kind", ctypes.c_int), ("ordinal", ctypes.c_int), ("ndim", ctypes.c_int)]
    _fields_ += [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]
    _fields_ += [("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


def read(exporter, stream=None):
    named = ctypes.pythonapi.PyCapsule_GetPointer
    named.restype, named.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = exporter.__dlpack__(max_version=(1, 0), stream=stream)
    versioned = Versioned.from_address(named(capsule, b"dltensor_versioned"))
    tensor = versioned.tensor
    assert (tensor.kind, tensor.ordinal, versioned.flags, tensor.offset) == (2, 0, 0, 0) and exporter.__dlpack_device__() == (2, 0)
    shape, strides = tensor.shape[: tensor.ndim], tensor.strides[: tensor.ndim]
    out = numpy.empty(shape, {(1, 8): numpy.uint8, (2, 32): numpy.float32, (0, 64): numpy.int64}[tensor.code, tensor.bits])
    assert list(strides) == [step // out.itemsize for step in out.strides]
    handle = None if stream in (None, 1) else ctypes.c_void_p(stream)
    call("cuMemcpyDtoHAsync_v2", out.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(tensor.data), ctypes.c_size_t(out.nbytes), handle)
    call("cuStreamSynchronize", handle)
    return out


def refused(kind, words, act):
    try:
        act()
    except kind as error:
        assert words in str(error), error
    else:
        raise SystemExit(f"nothing was refused: {words}")
"""


@pytest.fixture
def under_driver(tmp_path, digits):
    if not DRIVER:
        pytest.skip("CUDA_TEST_DRIVER is not set: cargo x prove python sets it")
    for name in ("libcuda.so", "libcuda.so.1"):
        (tmp_path / name).symlink_to(os.path.abspath(DRIVER))

    def run(program):
        env = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")}
        ran = subprocess.run([sys.executable, "-c", READER + program, digits.url + "training/"], env=env, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    return run


def test_batches_on_the_device_are_those_of_the_host_in_order_and_resume(under_driver):
    under_driver("""
host = [
    types.SimpleNamespace(ids=list(one.ids), labels=list(one.labels), epoch=one.epoch, step=one.step, pixels=one.numpy().copy())
    for one in fuelrail.Loader(URL, epochs=2, seed=3, **DECODED)
]
loader = fuelrail.Loader(URL, epochs=2, seed=3, device="cuda:0", **DECODED)
for number, expected in enumerate(host[:25]):
    batch = next(loader)
    assert isinstance(batch, fuelrail.DeviceBatch) and len(batch) == 50 and batch.shape == (50, 28, 28, 1)
    assert list(batch.ids) == expected.ids and list(batch.labels) == expected.labels and set(batch.weights) == {1.0}
    assert (batch.epoch, batch.step) == (expected.epoch, expected.step)
    assert (read(batch) == expected.pixels).all() and (read(batch.labels_on_device) == expected.labels).all(), number
state, stats = loader.state_dict(), loader.stats()
assert (stats["device"]["batches"], state["epoch"]) == (25, 1) and stats["device"]["copied_bytes"] >= 25 * 50 * 784, stats["device"]
loader.close()
refused(fuelrail.UsageError, "closed", lambda: next(loader))
rest = fuelrail.Loader(URL, epochs=2, seed=3, device=0, device_depth=2, state=state, decode_dtype="f32", decode_layout="nchw", **DECODED)
for expected in host[25:]:
    batch = next(rest)
    assert batch.shape == (50, 1, 28, 28)
    assert numpy.allclose(read(batch), expected.pixels.transpose(0, 3, 1, 2) / numpy.float32(255)) and list(batch.ids) == expected.ids
assert next(rest, None) is None
""")


def test_other_fields_of_what_is_decoded_are_in_the_hosts_memory(under_driver, digits, tmp_path):
    digit = digits.get(digits.keys()[0])
    archived(tmp_path, {f"{n:02}": {"png": digit, "txt": f"digit {n}".encode()} for n in range(20)})
    under_driver(f"""
with fuelrail.Loader("{tmp_path}", format="webdataset", fields=["txt"], device=0, **{{**DECODED, "batch_size": 8}}) as loader:
    for batch in loader:
        texts = [str(text, "utf-8") for text in batch["txt"]]
        assert texts == [f"digit {{int(key[-2:])}}" for key in batch.keys]
        assert batch.fields(3) == {{"txt": texts[3].encode()}}
        refused(KeyError, "png", lambda: batch["png"])
        refused(IndexError, "of a batch of", lambda: batch.fields(8))
""")


def test_streams_devices_copies_and_what_is_held(under_driver):
    under_driver("""
loader = fuelrail.Loader(URL, device="cuda", device_depth=2, **DECODED)
stream = ctypes.c_void_p()
call("cuStreamCreate", ctypes.byref(stream), 1)
first = next(loader)
refused(BufferError, "another device", lambda: first.__dlpack__(dl_device=(1, 0)))
refused(BufferError, "clone", lambda: first.__dlpack__(copy=True))
refused(TypeError, "on a GPU", lambda: numpy.asarray(first))
refused(TypeError, "from_dlpack", lambda: numpy.array(first.labels_on_device, dtype="int64", copy=True))
whole = read(first, stream.value)
refused(BufferError, "another stream", lambda: first.labels_on_device.__dlpack__(stream=1))
assert read(first.labels_on_device, stream.value).shape == (50,)
with fuelrail.Loader(URL, **DECODED) as here:
    assert first.keys == [here.record_key(id) for id in first.ids] == [loader.record_key(id) for id in first.ids]
second = next(loader)
refused(fuelrail.BudgetError, "drop batches", lambda: next(loader))
first.release(), second.release()
refused(fuelrail.UsageError, "released", lambda: first.__dlpack__())
assert len(first) == 50 and "cuda:0" in repr(first)

# A capsule keeps its buffer when batch and loader are gone.
loader = fuelrail.Loader(URL, device=0, **DECODED)
kept = next(loader)
labels, capsule = kept.labels_on_device, kept.__dlpack__()
loader.close()
del kept, loader
gc.collect()
assert len(read(labels)) == 50
del capsule, labels
gc.collect()

# Bytes of whole objects, which are of different lengths.
loader = fuelrail.Loader(URL, device=0, batch_size=20, memory_limit="64MiB", shards=1)
host = fuelrail.Loader(URL, batch_size=20, memory_limit="64MiB", shards=1)
for batch, expected in zip(loader, host):
    flat = read(batch)
    assert batch.shape is None and flat.ndim == 1
    for i, (at, length) in enumerate(zip(batch.offsets, batch.lens)):
        assert flat[at : at + length].tobytes() == bytes(expected.sample(i))
""")


def test_without_a_gpu_it_is_an_error_that_says_so(digits):
    if not ctypes.util.find_library("cuda"):
        with pytest.raises(fuelrail.Error, match="CUDA"):
            fuelrail.Loader(digits.url + "training/", batch_size=8, device="cuda:0", **SMALL)
    for device in ["gpu", "cuda:x", -1]:
        with pytest.raises(fuelrail.UsageError, match="cuda:0"):
            fuelrail.Loader(digits.url + "training/", batch_size=8, device=device, **SMALL)
