"""`decode_with`: a Python function decodes batches on the decoding threads."""

import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest
from conftest import DIGITS, SMALL

import fuelrail

numpy = pytest.importorskip("numpy")


def loader_of(digits, function, **settings):
    settings = {"batch_size": 32, "decode": "1x4x1", "decode_dtype": "f32", "decode_threads": 2, **SMALL, **settings}
    return fuelrail.Loader(digits.url + "training/", decode_with=function, **settings)


def facts(samples, ids, epoch):
    """Id, epoch, length and last byte of each sample."""
    rows = [(id, epoch, len(sample), sample[-1]) for id, sample in zip(ids, samples, strict=True)]
    return numpy.array(rows, dtype="float32").reshape(-1, 1, 4, 1)


def test_a_function_decodes_each_sample_once_on_threads_of_the_engine(digits):
    keys, threads, sizes = digits.keys(), set(), []

    def function(samples, ids, epoch):
        threads.add(threading.get_ident())
        sizes.append(len(samples))
        return facts(samples, ids, epoch)

    with loader_of(digits, function, epochs=2) as loader:
        seen = []
        for batch in loader:
            assert batch.shape == (len(batch), 1, 4, 1)
            for id, row in zip(batch.ids, batch.numpy().reshape(-1, 4).tolist(), strict=True):
                file = digits.get(keys[id]) if len(seen) < 64 else None
                assert row[:2] == [id, batch.epoch] and (file is None or row[2:] == [len(file), file[-1]])
                seen.append(id)
    assert sorted(seen) == sorted([*range(DIGITS)] * 2)
    assert len(sizes) == 2 * -(-DIGITS // 32) and threading.get_ident() not in threads


def test_samples_are_views_of_the_batch_and_may_be_kept(digits):
    kept = {}

    def function(samples, ids, epoch):
        assert all(isinstance(sample, memoryview) and sample.readonly for sample in samples)
        kept.update({ids[0]: numpy.frombuffer(samples[0], "uint8"), ids[-1]: samples[-1]})
        return facts(samples, ids, epoch)

    with loader_of(digits, function) as loader:
        assert sum(map(len, loader)) == DIGITS
    keys = digits.keys()
    assert len(kept) > 30 and all(bytes(sample) == digits.get(keys[id]) for id, sample in kept.items())


def test_a_list_of_arrays_will_do(digits):
    with loader_of(digits, lambda *batch: list(facts(*batch))) as loader:
        batch = next(loader)
        assert batch.numpy()[:, 0, 0, 0].tolist() == list(batch.ids)


def test_what_it_raises_names_the_sample_and_is_the_cause_or_leaves_the_sample_out(digits):
    def function(samples, ids, epoch):
        if 13 in ids:
            raise LookupError("thirteen")
        return facts(samples, ids, epoch)

    with loader_of(digits, function) as loader, pytest.raises(fuelrail.Error, match="LookupError: thirteen") as caught:
        sum(map(len, loader))
    assert caught.value.object == digits.keys()[13] and isinstance(caught.value.__cause__, LookupError)
    with loader_of(digits, function, bad_samples="skip") as loader:
        seen = [id for batch in loader for id in batch.ids]
        assert sorted(seen) == [id for id in range(DIGITS) if id != 13]


def test_of_what_it_raises_for_samples_that_are_left_out_nothing_is_kept(digits):
    alive = []

    class Local:
        pass

    def function(samples, ids, epoch):
        local = Local()
        alive.append(weakref.ref(local))
        if 13 in ids:
            raise LookupError(f"thirteen, with {local}")
        return facts(samples, ids, epoch)

    with loader_of(digits, function, bad_samples="quarantine", epochs=2) as loader:
        assert sum(map(len, loader)) == 2 * (DIGITS - 1)
        gc.collect()
        assert len(alive) > 2 * DIGITS // 32 and [local for local in alive if local() is not None] == []


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda samples, ids, epoch: facts(samples, ids, epoch).astype("float64"), "float64.*not float32"),
        (lambda samples, ids, epoch: facts(samples, ids, epoch)[:, :, 1:], "not float32 of shape"),
        (lambda samples, ids, epoch: None, "not float32 of shape"),
        (lambda samples: samples, "takes 1 positional argument"),
    ],
)
def test_what_does_not_fit_is_said(digits, made, message):
    with loader_of(digits, made) as loader, pytest.raises(fuelrail.Error, match=message):
        next(loader)


def test_axes_in_another_order_are_refused(digits):
    def function(samples, ids, epoch):
        return numpy.zeros((len(samples), *shape), "float32")

    for shape, fits in [((2, 3, 1), True), ((2, 3), True), ((3, 2, 1), False), ((1, 3, 2), False), ((6,), True)]:
        with loader_of(digits, function, decode="2x3x1") as loader:
            if fits:
                assert next(loader).shape[1:] == (2, 3, 1)
            else:
                with pytest.raises(fuelrail.Error, match="not float32 of shape"):
                    next(loader)


def test_the_shape_must_be_known(digits):
    with pytest.raises(fuelrail.UsageError, match="decode_with without decode"):
        loader_of(digits, facts, decode=None)


def test_the_interpreter_ends_while_a_function_runs(digits):
    program = f"""
        import time, numpy, fuelrail
        def slow(samples, ids, epoch):
            time.sleep(0.3)
            return numpy.zeros((len(samples), 1, 4, 1), "uint8")
        loader = fuelrail.Loader({digits.url + "training/"!r}, batch_size=32, decode="1x4x1", decode_with=slow,
                                 decode_threads=2, memory_limit="64MiB", shards=1, pin=False)
        next(loader)
        print("over")
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "over\n", "")


@pytest.mark.parametrize("use", [next, fuelrail.Loader.close])
def test_a_function_that_uses_the_loader_that_calls_it_is_refused(digits, use):
    loaders, refused = [], []

    def function(samples, ids, epoch):
        if loaders:
            with pytest.raises(fuelrail.UsageError, match="inside its own decode_with") as raised:
                use(loaders[0])
            refused.append(raised.value.hint)
        return facts(samples, ids, epoch)

    with loader_of(digits, function, epochs=3) as loader:
        loaders.append(loader)
        assert sum(map(len, loader)) == 3 * DIGITS
    assert refused and all(refused)


def test_what_is_wrong_with_a_whole_call_is_said_and_blames_no_sample(digits):
    calls = []

    def function(samples, ids, epoch):
        calls.append(len(samples))
        return facts(samples, ids, epoch)[:-1]

    with loader_of(digits, function, batch_size=8) as loader, pytest.raises(fuelrail.Error, match=r"8 sample.*\(7, 1, 4, 1\), not float32") as raised:
        next(loader)
    assert raised.value.object is None and set(calls) == {8}
    # The error is told again, so that a run that failed does not look complete.
    with loader_of(digits, function) as loader:
        for _ in range(2):
            with pytest.raises(fuelrail.Error, match="does not fit"):
                next(loader)


@pytest.mark.parametrize("catches", [False, True])
def test_the_interpreter_ends_though_a_function_never_returns(digits, catches):
    program = f"""
        import sys, time, fuelrail
        def busy(samples, ids, epoch):
            while True:
                try:
                    time.sleep(0.01)
                except BaseException:
                    if not {catches} or time.monotonic() - begun > 2:
                        raise
        begun = time.monotonic()
        loader = fuelrail.Loader({digits.url + "training/"!r}, batch_size=32, decode="1x4x1", decode_with=busy,
                                 decode_threads=2, memory_limit="64MiB", shards=1, pin=False)
        time.sleep(0.5)
        sys.exit(7)
    """
    begun = time.monotonic()
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (7, "", "")
    assert time.monotonic() - begun < 9, "it need not be waited for"


def test_a_function_that_does_not_let_the_program_end_is_named(digits):
    program = f"""
        import threading, time, fuelrail
        begun = threading.Event()
        def deaf(samples, ids, epoch):
            begun.set()
            while True:
                try:
                    time.sleep(0.01)
                except BaseException:
                    pass
        loader = fuelrail.Loader({digits.url + "training/"!r}, batch_size=32, decode="1x4x1", decode_with=deaf,
                                 memory_limit="64MiB", shards=1, pin=False)
        begun.wait()
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert "decode_with has not returned" in run.stderr, run


def test_a_forked_child_ends_while_a_function_runs(digits):
    program = f"""
        import os, threading, numpy, fuelrail
        begun, go = threading.Event(), threading.Event()
        def slow(samples, ids, epoch):
            begun.set()
            go.wait(20)
            return numpy.zeros((len(samples), 1, 4, 1), "uint8")
        loader = fuelrail.Loader({digits.url + "training/"!r}, batch_size=32, decode="1x4x1", decode_with=slow,
                                 memory_limit="64MiB", shards=1, pin=False)
        begun.wait()
        child = os.fork()
        if child:
            status = os.waitpid(child, 0)[1]
            go.set()
            print(status)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "0\n"), run.stderr


def test_an_object_that_has_the_loader_of_its_own_function_is_collected(digits):
    class Numbers:
        def __init__(self):
            self.loader = loader_of(digits, self.facts, epochs=1000)

        def facts(self, samples, ids, epoch):
            return facts(samples, ids, epoch)

    gone = []
    for _ in range(3):
        numbers = Numbers()
        assert len(next(numbers.loader)) > 0
        gone.append((weakref.ref(numbers), weakref.ref(numbers.loader)))
        del numbers
    # One whose function runs just now is in use.
    for _ in range(100):
        gc.collect()
        if all(numbers() is None and loader() is None for numbers, loader in gone):
            return
        time.sleep(0.1)
    raise AssertionError(gone)
