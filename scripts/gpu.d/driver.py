"""The driver by itself, through ctypes: registration of host memory, and the link's rate from pinned memory. One line of JSON each."""

import ctypes
import json
import mmap
import sys
import time

MEMORY_REFUSED = (2, 800, 801)  # out of memory, not permitted, not supported


class Cuda:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def code(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def call(self, name, *arguments):
        code = self.code(name, *arguments)
        if code:
            raise SystemExit(f"{name} returned {code}")

    def made(self, name, *arguments):
        """A handle or address that the call writes first."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle


def mapped(length):
    """Anonymous memory with huge pages where they are to be had, touched."""
    memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    begun = time.monotonic()
    ctypes.memset(address, 1, length)
    return memory, address, time.monotonic() - begun


def register(cuda, length):
    _memory, address, touch_s = mapped(length)
    begun = time.monotonic()
    code = cuda.code("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(length), 1)
    said = {"bytes": length, "touch_s": touch_s, "register_s": time.monotonic() - begun}
    if code:
        return {**said, "refused" if code in MEMORY_REFUSED else "failed": code}
    begun = time.monotonic()
    cuda.call("cuMemHostUnregister", ctypes.c_void_p(address))
    return {**said, "unregister_s": time.monotonic() - begun}


def rate(cuda, source, length, copies):
    """GB/s of so many copies, one after another, by events on their stream."""
    target, stream = cuda.made("cuMemAlloc_v2", ctypes.c_size_t(length)), cuda.made("cuStreamCreate", 1)
    begin, end = cuda.made("cuEventCreate", 0), cuda.made("cuEventCreate", 0)
    for warm in (True, False):
        cuda.call("cuEventRecord", begin, stream)
        for _ in range(2 if warm else copies):
            cuda.call("cuMemcpyHtoDAsync_v2", target, source, ctypes.c_size_t(length), stream)
        cuda.call("cuEventRecord", end, stream)
        cuda.call("cuEventSynchronize", end)
    ms = ctypes.c_float()
    cuda.call("cuEventElapsedTime", ctypes.byref(ms), begin, end)
    cuda.call("cuMemFree_v2", target)
    return length * copies / max(ms.value, 1e-6) / 1e6


def main():
    what, unit = sys.argv[1], int(sys.argv[2])
    cuda = Cuda()
    if what == "register":
        for times in (1, 4, 16):
            print(json.dumps(register(cuda, times * unit)), flush=True)
        return
    length = unit // 4
    own = cuda.made("cuMemHostAlloc", ctypes.c_size_t(length), 0)
    said = {"bytes": length, "pinned_gbps": rate(cuda, own, length, 20)}
    _memory, address, _ = mapped(length)
    cuda.call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(length), 1)
    said["registered_gbps"] = rate(cuda, ctypes.c_void_p(address), length, 20)
    cuda.call("cuMemHostUnregister", ctypes.c_void_p(address))
    print(json.dumps(said))


main()
