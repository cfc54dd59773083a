"""Importance sampling: losses are reported, large ones come more often, ranks draw alike, and a state resumes the draws."""

import array
import json
import subprocess
import sys

import pytest
from conftest import DIGITS, SMALL

import fuelrail

DRAWN = {"batch_size": 50, "seed": 3, "importance": "on", **SMALL}


def drawing(bucket, **settings):
    return fuelrail.Loader(bucket.url + "training/", **{**DRAWN, **settings})


def loss(id):
    """Every tenth sample is hard for ever."""
    return 10.0 if id % 10 == 0 else 0.1


def epochs(loader):
    """Delivered (id, weight) by epoch; losses are reported after each batch."""
    taken = {}
    for batch in loader:
        taken.setdefault(batch.epoch, []).extend(zip(batch.ids, batch.weights, strict=True))
        loader.report(batch.ids, [loss(id) for id in batch.ids])
    return taken


def test_large_losses_come_more_often_and_weigh_less(digits):
    with drawing(digits, epochs=3) as loader:
        assert loader.takes_losses
        taken = epochs(loader)
    assert sorted(taken[0]) == [(id, 1.0) for id in range(DIGITS)], "the first epoch is plain"
    hard = [weight for id, weight in taken[2] if id % 10 == 0]
    easy = [weight for id, weight in taken[2] if id % 10]
    assert len(hard) + len(easy) == DIGITS
    # A score is the logarithm of the loss's rank in its step, so that no loss has all.
    assert len(hard) > 1.1 * DIGITS / 10, "they were a tenth of the samples"
    assert max(hard) < 1 < sum(easy) / len(easy)


def test_reports_take_lists_arrays_and_views(digits):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    kinds = [
        lambda ids, losses: (list(ids), losses),
        lambda ids, losses: (ids, array.array("f", losses)),
        lambda ids, losses: (numpy.asarray(ids).astype("int64"), numpy.array(losses, "float16")),
        lambda ids, losses: (tuple(ids), numpy.array(losses)),
    ]
    plain, mixed = [], []
    for kind, drawn in [(lambda n: kinds[0], plain), (lambda n: kinds[n % 4], mixed)]:
        with drawing(digits, epochs=2) as loader:
            for n, batch in enumerate(loader):
                drawn.append(list(batch.ids))
                loader.report(*kind(n)(batch.ids, [float(id % 7) for id in batch.ids]))
    assert plain == mixed


def test_wrong_reports_are_refused_and_nothing_is_recorded(digits):
    with drawing(digits, epochs=2) as loader:
        batch, later = next(loader), next(loader)
        fine = [0.5] * 50
        for ids, losses, match in [
            (batch.ids, fine[1:], "49 losses for 50 samples"),
            (batch.ids, [*fine[1:], float("nan")], f"the loss of sample {batch.ids[49]} is NaN"),
            (batch.ids, [*fine[1:], float("inf")], "is inf"),
            ([*batch.ids[1:], DIGITS], fine, f"a loss for sample {DIGITS} of {DIGITS}"),
            (batch.ids[1:], fine[1:], "no batch that was taken and not yet reported"),
            ([-1] * 50, fine, "ids are not one whole number"),
            ([0.5] * 50, fine, "ids are not one whole number"),
            (batch.ids, [fine], "losses are not one number"),
            (batch.ids, ["a"] * 50, "losses are not one number"),
        ]:
            with pytest.raises(fuelrail.UsageError, match=match) as raised:
                loader.report(ids, losses)
            assert raised.value.hint
        loader.report(batch.ids, fine)
        with pytest.raises(fuelrail.UsageError, match="not yet reported"):
            loader.report(batch.ids, fine)
        loader.report(later.ids, fine)


def test_losses_of_one_rank_are_not_those_of_all(digits):
    with drawing(digits, rank=0, world=2) as first, drawing(digits, rank=1, world=2) as second:
        one, other = next(first), next(second)
        with pytest.raises(fuelrail.UsageError, match="one rank's batch, in a run of 2 ranks"):
            first.report(one.ids, [1.0] * 50)
        for rank in (first, second):
            rank.report([*other.ids, *one.ids], [1.0] * 100)


def test_refusals_and_other_calls_do_not_wait_for_each_other(digits):
    program = """
import fuelrail, sys, threading
sys.setswitchinterval(1e-6)
loader = fuelrail.Loader(sys.argv[1], batch_size=50, importance="on", memory_limit="64MiB", shards=1, pin=False)
next(loader)
def refused():
    for _ in range(2000):
        try:
            loader.report([0], [0.5])
        except fuelrail.UsageError:
            pass
def look():
    while refusing.is_alive():
        loader.epoch, len(loader), loader.state_dict()
refusing = threading.Thread(target=refused)
looking = threading.Thread(target=look)
refusing.start(), looking.start()
refusing.join(), looking.join()
"""
    subprocess.run([sys.executable, "-c", program, digits.url + "training/"], check=True, timeout=60)


def test_a_report_without_importance_does_nothing(digits):
    with drawing(digits, importance=None) as loader:
        assert not loader.takes_losses
        ids = next(loader).ids
        loader.report(ids, [1.0] * 50)
        loader.report(ids, [1.0] * 50)
        assert "scores" not in loader.state_dict()
        with pytest.raises(fuelrail.UsageError, match="49 losses"):
            loader.report(ids, [1.0] * 49)


def test_a_drawn_run_resumes_with_its_draws(digits):
    with drawing(digits, epochs=3) as loader:
        states, batches = [], []
        for batch in loader:
            batches.append((batch.epoch, list(batch.ids), list(batch.weights)))
            loader.report(batch.ids, [loss(id) for id in batch.ids])
            states.append(loader.state_dict())
    assert len(batches) == 60
    for position in [0, 19, 20, 33, 47]:
        given = json.dumps(states[position]) if position % 2 else states[position]
        with drawing(digits, epochs=3, state=given) as resumed:
            rest = []
            for batch in resumed:
                rest.append((batch.epoch, list(batch.ids), list(batch.weights)))
                resumed.report(batch.ids, [loss(id) for id in batch.ids])
        assert rest == batches[position + 1 :], position
    damaged = dict(states[33], scores=states[33]["scores"][:-8])
    with pytest.raises(fuelrail.UsageError, match="damaged"):
        drawing(digits, epochs=3, state=damaged)
    with pytest.raises(fuelrail.UsageError, match="scores"):
        drawing(digits, epochs=3, state={key: value for key, value in states[33].items() if key != "scores"})


# One of two ranks: prints what it takes; `BAD` as the last argument reports a loss too few on rank 1.
RANK = """
import json, os, sys
import fuelrail.torch, torch
import torch.distributed as distributed
url, store, rank, bad = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
settings = {"memory_limit": "64MiB", "shards": 1, "pin": False}
# 999 samples in steps of 74: the last one is half empty, and not of equal lengths.
data = fuelrail.torch.IterableDataset(url, batch_size=37, seed=3, decode="28x28x1", importance="on", **settings)
taken = []
for epoch in range(3):
    for batch in torch.utils.data.DataLoader(data, batch_size=None, num_workers=0):
        taken.append([epoch, batch["id"].tolist(), batch["weight"].tolist()])
        losses = torch.where(batch["id"] % 10 == 0, 10.0, 0.1)
        if bad and rank:
            losses = losses[1:]
        try:
            data.report(batch["id"], losses)
        except fuelrail.UsageError as error:
            print(json.dumps(str(error)))
            sys.exit()
    if epoch == 1:
        next(iter(data)) # and what is left early is over
state = data.state_dict()
print(json.dumps([taken, state]))
distributed.destroy_process_group()
"""


def two_ranks(url, store, *bad):
    pytest.importorskip("torch", reason="torch is not installed")
    started = [[sys.executable, "-c", RANK, url, str(store), rank, *bad] for rank in "01"]
    ranks = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for arguments in started]
    return [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]


def test_two_ranks_draw_the_same(serve, tmp_path):
    bucket = serve("digits", "--count", 999)
    (first, state), (second, other) = two_ranks(bucket.url + "training/", tmp_path / "store")
    assert state == other and state["scores"], "their tables are the same"
    steps = list(zip(first, second, strict=True))
    assert {len(ids) for step in steps for _, ids, _ in step} == {37, 19, 18}
    by_epoch = [[id for step in steps for of, ids, _ in step if of == epoch for id in ids] for epoch in range(3)]
    assert sorted(by_epoch[0]) == list(range(999))
    with fuelrail.Loader(bucket.url + "training/", **{**DRAWN, "batch_size": 74}, epochs=3) as alone:
        drawn = epochs(alone)
    for epoch in (0, 1):
        assert sorted(by_epoch[epoch]) == sorted(id for id, _ in drawn[epoch]), "as one process draws them"
    assert sum(id % 10 == 0 for id in by_epoch[1]) > 105


def test_a_wrong_report_of_one_rank_is_an_error_on_both(digits, tmp_path):
    said = two_ranks(digits.url + "training/", tmp_path / "store", "bad")
    assert said[0] == said[1] and "36 losses for 37 samples on rank 1" in said[0]
