"""NumPy's own files, as arrays over the memory they were read into."""

import io
import math
import struct
import tokenize
import zipfile
import zlib

import numpy
from numpy.lib import format as npy

_HEADS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# The longest head of an array that is read, in bytes.
_HEAD_MAX = 1 << 16


def arrays(sample):
    """The array of an `.npy` file or the arrays of an `.npz` file, as `numpy.load` has them, but without a copy.

    A `decode_with` function that calls it holds the GIL for some microseconds a file, where `numpy.load` copies the data and computes its checksum.
    The CRC-32 of an `.npz` member is not verified; the loader has verified the checksums that the server sent, if it sent any.

    Parameters
    ----------
    sample : buffer
        The bytes of the file.

    Returns
    -------
    numpy.ndarray or dict of str to numpy.ndarray
        Read-only views of the memory of `sample`, which they keep. Members that are compressed are arrays of their own.

    Raises
    ------
    ValueError
        Where it is neither kind of file, torn, or holds Python objects.
    """
    view = memoryview(sample).toreadonly().cast("B")
    if view[: len(npy.MAGIC_PREFIX)] == npy.MAGIC_PREFIX:
        return _array(view)
    try:
        with zipfile.ZipFile(_File(view)) as archive:
            return {info.filename.removesuffix(".npy"): _array(_member(view, archive, info)) for info in archive.infolist()}
    except (zipfile.BadZipFile, struct.error, OSError, EOFError, RuntimeError, zlib.error) as error:
        raise ValueError(f"neither an .npy nor a whole .npz file: {error}") from error


def _array(view):
    head = io.BytesIO(view[:_HEAD_MAX])
    version = npy.read_magic(head)
    if version not in _HEADS:
        raise ValueError(f"version {version} of an array is not read; numpy.load reads it")
    try:
        shape, fortran, dtype = _HEADS[version](head)
    except (tokenize.TokenError, SyntaxError, TypeError) as error:
        raise ValueError(f"the head of an array is damaged: {error}") from error
    if dtype.hasobject:
        raise ValueError("an array of Python objects is not read: it could run any program")
    count = math.prod(shape)
    if count == 0 or dtype.itemsize == 0:
        return numpy.empty(shape, dtype)
    array = numpy.frombuffer(view, dtype, count, head.tell())
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)


def _member(view, archive, info):
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        return memoryview(archive.read(info))
    signature, name, extra = struct.unpack("<4s22xHH", view[info.header_offset :][:30])
    begin = info.header_offset + 30 + name + extra
    data = view[begin : begin + info.file_size]
    if signature != b"PK\3\4" or len(data) != info.file_size:
        raise zipfile.BadZipFile(f"{info.filename} is not where it should be")
    return data


class _File(io.RawIOBase):
    """A read-only file object over the bytes: `io.BytesIO` would copy them."""

    def __init__(self, view):
        self._view, self._at = view, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self._at

    def seek(self, offset, whence=io.SEEK_SET):
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence]
        if at < 0:
            raise OSError("before the beginning")
        self._at = at
        return at

    def readinto(self, into):
        piece = self._view[self._at :][: len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
