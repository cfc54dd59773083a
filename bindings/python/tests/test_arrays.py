"""`fuelrail.arrays`: NumPy's files without a copy."""

import io
import zipfile

import pytest
from conftest import SMALL

import fuelrail

numpy = pytest.importorskip("numpy")

NUMBERS = numpy.arange(24, dtype="<f4").reshape(2, 3, 4)
ARRAYS = {
    "volume": NUMBERS,
    "fortran": numpy.asfortranarray(NUMBERS),
    "bytes": numpy.arange(5, dtype="u1"),
    "big_endian": NUMBERS.astype(">i8"),
    "scalar": numpy.array(7.5),
    "empty": numpy.zeros((0, 3)),
    "rows": numpy.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i2"), ("b", "f8")]),
    "text": numpy.array(["é", "ab"]),
}


def file_of(save, *arguments, **arrays):
    file = io.BytesIO()
    save(file, *arguments, **arrays)
    return file.getvalue()


def equal(found, wanted):
    return found.dtype == wanted.dtype and found.shape == wanted.shape and (found == wanted).all()


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_a_view_of_its_file(name):
    file = file_of(numpy.save, ARRAYS[name])
    found = fuelrail.arrays(memoryview(file))
    assert equal(found, numpy.load(io.BytesIO(file)))
    assert not found.flags.writeable or not found.size
    assert found.flags.f_contiguous == ARRAYS[name].flags.f_contiguous
    assert not found.size or numpy.shares_memory(found.view("u1") if found.ndim == 1 else found, numpy.frombuffer(file, "u1"))


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
def test_the_arrays_of_an_archive_are_those_that_numpy_reads(save):
    file = file_of(save, **ARRAYS)
    found, wanted = fuelrail.arrays(file), numpy.load(io.BytesIO(file))
    assert list(found) == list(wanted) and all(equal(found[name], wanted[name]) for name in wanted)
    assert numpy.shares_memory(found["volume"], numpy.frombuffer(file, "u1")) == (save is numpy.savez)


def test_what_is_torn_damaged_or_something_else_is_a_value_error():
    whole, alone = file_of(numpy.savez, x=NUMBERS, y=[1]), file_of(numpy.save, NUMBERS)
    for file in [whole, alone]:
        for end in range(len(file)):
            with pytest.raises(ValueError):
                fuelrail.arrays(file[:end])
    for at in range(len(whole)):
        for file in [whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :], whole[:at] + b"\xff\xff" + whole[at + 2 :]]:
            try:
                fuelrail.arrays(file)
            except ValueError:
                pass
    objects = file_of(numpy.savez, x=numpy.array([{}], dtype=object))
    with pytest.raises(ValueError, match="Python objects"):
        fuelrail.arrays(objects)
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("x.npy", b"no array")
    for other in [file.getvalue(), b"", b"PK", b"\x93NUMPY\x09\x00"]:
        with pytest.raises(ValueError):
            fuelrail.arrays(other)


def test_a_loader_decodes_archives_with_it(serve, tmp_path):
    for number in range(8):
        numpy.savez(tmp_path / f"{number}.npz", x=numpy.full((4, 6), number, "uint8"), y=number)

    def volumes(samples, ids, epoch):
        return numpy.stack([fuelrail.arrays(sample)["x"][..., None] for sample in samples])

    with fuelrail.Loader(serve(tmp_path).url, batch_size=4, decode="4x6x1", decode_with=volumes, **SMALL) as loader:
        found = {id: image for batch in loader for id, image in zip(batch.ids, batch.numpy().copy(), strict=True)}
    assert len(found) == 8 and all((image == id).all() and image.shape == (4, 6, 1) for id, image in found.items())
