"""The data set for PyTorch, in a DataLoader and in torchdata's StatefulDataLoader."""

import copy
import inspect
import itertools
import json
import pickle

import pytest
from conftest import DIGITS, SMALL, Bucket

import fuelrail

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader  # noqa: E402


def digits_set(bucket, **settings):
    settings = {"batch_size": 100, "decode": "28x28x1", "seed": 5, **SMALL, **settings}
    return fuelrail.torch.IterableDataset(bucket.url + "training/", **settings)


def loader_over(dataset):
    return DataLoader(dataset, batch_size=None, num_workers=0)


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def of_the_engine(bucket, epochs):
    """The ids of each epoch's batches, as the plain loader gives them."""
    settings = {"batch_size": 100, "seed": 5, "epochs": epochs, **SMALL}
    with fuelrail.Loader(bucket.url + "training/", **settings) as loader:
        batches = [list(batch.ids) for batch in loader]
    return [batches[epoch * 10 : epoch * 10 + 10] for epoch in range(epochs)]


@pytest.mark.filterwarnings("error")
def test_tensors_are_the_batch_itself(digits):
    seen = []
    dataset = digits_set(digits, transform=lambda batch: seen.append(batch) or fuelrail.torch.tensors(batch))
    tensors = next(iter(loader_over(dataset)))
    image, label = tensors["image"], tensors["label"]
    assert image.shape == (100, 28, 28, 1) and image.dtype == torch.uint8
    assert image.data_ptr() == seen[0].numpy().__array_interface__["data"][0]
    assert label.dtype == torch.int64 and label.tolist() == list(seen[0].labels)
    assert tensors["id"].tolist() == list(seen[0].ids)
    kept = copy.deepcopy(image)
    seen.clear()
    dataset.close()
    assert torch.equal(kept, image), "tensors outlive the loader"


def test_a_transform_runs_once_a_batch(digits):
    seen = []

    def transform(batch):
        seen.append(list(batch.ids))
        return len(seen), torch.from_dlpack(batch).float().div(255)

    batches = list(loader_over(digits_set(digits, transform=transform)))
    assert [number for number, _ in batches] == list(range(1, 11)) and seen == of_the_engine(digits, 1)[0]
    assert all(image.shape == (100, 28, 28, 1) and image.max() <= 1 for _, image in batches)


def test_a_pass_is_an_epoch_and_the_next_one_the_next(digits):
    dataset = digits_set(digits)
    loader = loader_over(dataset)
    assert len(loader) == len(dataset) == 10
    epochs = of_the_engine(digits, 4)
    assert [ids(loader) for _ in range(2)] == epochs[:2]
    # A pass that is left early is over.
    next(iter(loader))
    assert ids(loader) == epochs[3]
    dataset.set_epoch(7)
    two = loader_over(digits_set(digits, epochs=2))
    assert len(two) == 20 and ids(two) == epochs[0] + epochs[1] and ids(two) == epochs[2] + epochs[3]


def test_a_pass_left_by_break_is_over_and_one_that_is_closed_or_pickled_goes_on(digits):
    epochs = of_the_engine(digits, 2)

    def left():
        dataset = digits_set(digits)
        for step, _ in enumerate(dataset):
            if step == 1:
                return dataset

    dataset = left()
    assert ids(dataset) == epochs[1]
    dataset.close()
    dataset = left()
    copied = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    for goes_on in (dataset, copied):
        assert ids(goes_on) == epochs[0][2:] and ids(goes_on) == epochs[1]
        goes_on.close()


def test_wrong_settings_are_refused_at_once(digits, monkeypatch):
    for settings, message in [({"bach_size": 3}, "bach_size"), ({"seed": "x"}, "'x'"), ({"epochs": 1.5}, "epochs is 1.5"), ({"epochs": 0}, "epochs is 0")]:
        with pytest.raises(fuelrail.UsageError, match=message) as raised:
            digits_set(digits, **settings)
        assert raised.value.hint
    plain = digits_set(digits, transform=None, classes=iter("0123456789"))
    assert set(next(iter(plain))) == {"image", "label", "id", "weight"}
    plain.close()
    assert len(plain) == 10, "an iterator of names is read once"
    plain.close()
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(fuelrail.UsageError, match="RANK='x'"):
        len(digits_set(digits))


def test_a_state_of_every_position_resumes_there(digits):
    dataset = digits_set(digits)
    states, batches = [dataset.state_dict()], []
    for _ in range(2):
        for batch in loader_over(dataset):
            batches.append(batch["id"].tolist())
            states.append(dataset.state_dict())
    dataset.close()
    assert batches == sum(of_the_engine(digits, 2), [])
    for position in range(20):
        resumed = digits_set(digits)
        resumed.load_state_dict(states[position])
        left = 10 - position % 10
        assert ids(loader_over(resumed)) == batches[position : position + left], position
        resumed.close()
        given = digits_set(digits, state=states[position])
        assert next(iter(given))["id"].tolist() == batches[position]
        given.close()


def test_a_state_is_had_behind_an_outage_and_behind_close():
    # More than the loader has memory for: it cannot have read the whole pass before the bucket is gone.
    samples = 40_000
    bucket = Bucket("digits", "--count", samples)
    try:
        dataset = digits_set(bucket, outage_limit_s=1, memory_limit="16MiB")
        batches = iter(loader_over(dataset))
        seen = next(batches)["id"].tolist()
    finally:
        bucket.close()
    with pytest.raises(fuelrail.Error):
        while True:
            seen += next(batches)["id"].tolist()
    state = dataset.state_dict()
    assert state["epoch"] * samples + state["position"] == len(seen)
    dataset.close()
    assert dataset.state_dict() == state
    dataset.load_state_dict(json.dumps(state))
    assert dataset.state_dict() == state


def test_stateful_data_loader(digits):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader_over():
        return stateful.StatefulDataLoader(digits_set(digits), batch_size=None, num_workers=0)

    whole = sum(of_the_engine(digits, 3), [])
    loader, states, batches = loader_over(), [], []
    for _ in range(2):
        for batch in loader:
            batches.append(batch["id"].tolist())
            states.append(copy.deepcopy(loader.state_dict()))
    assert batches == whole[:20]
    loader.dataset.close()
    for position, state in enumerate(states, 1):
        resumed = loader_over()
        resumed.load_state_dict(state)
        got = ids(resumed)
        if got:
            left = 10 - position % 10
            assert got == whole[position : position + left], position
        else:
            # What ended is restored as ended; the next pass is the next epoch.
            assert position % 10 == 0
            assert ids(resumed) == whole[position : position + 10]
        resumed.dataset.close()


def test_two_stateful_data_loaders_at_once_resume_in_the_middle(digits):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loaders():
        return [stateful.StatefulDataLoader(digits_set(digits, seed=seed), batch_size=None, num_workers=0) for seed in (1, 2)]

    begun, taken = loaders(), ([], [])
    one, two = map(iter, begun)
    for n in range(7):
        if n < 4:
            taken[0].append(next(one)["id"].tolist())
        taken[1].append(next(two)["id"].tolist())
    states = [copy.deepcopy(loader.state_dict()) for loader in begun]
    [loader.dataset.close() for loader in begun]
    resumed = loaders()
    [loader.load_state_dict(state) for loader, state in zip(resumed, states, strict=True)]
    for pair in itertools.zip_longest(*resumed):
        for batches, batch in zip(taken, pair, strict=True):
            batches.extend([batch["id"].tolist()] if batch else [])
    [loader.dataset.close() for loader in resumed]
    assert [len(batches) for batches in taken] == [10, 10] and taken[0] != taken[1]
    for batches in taken:
        assert sorted(sum(batches, [])) == list(range(DIGITS))


def test_an_iterator_ends_when_a_newer_one_has_begun(digits):
    for importance in (None, "on"):
        dataset = digits_set(digits, importance=importance)
        stale, newer = iter(dataset), iter(dataset)
        next(stale)
        next(stale)
        taken = [ids([next(newer)])]
        with pytest.raises(fuelrail.UsageError, match="a newer iterator") as raised:
            next(stale)
        assert raised.value.hint
        taken += [ids([batch]) for batch in newer]
        assert importance or sum(taken, []) == of_the_engine(digits, 2)[1]
        assert len(taken) == 10 and dataset.state_dict()["epoch"] == 2
        dataset.close()


def test_a_transform_that_raises_loses_no_batch(digits):
    seen, raises = [], [0, 3, 9]

    def transform(batch):
        if raises and len(seen) == raises[0]:
            raises.pop(0)
            raise LookupError("from a transform")
        return list(batch.ids)

    dataset = digits_set(digits, transform=transform)
    epoch, state = of_the_engine(digits, 1)[0], dataset.state_dict()
    while len(seen) < 10:
        try:
            for batch in dataset:
                seen.append(batch)
                state = dataset.state_dict()
        except LookupError:
            assert dataset.state_dict() == state
            resumed = digits_set(digits, state=state)
            assert next(iter(resumed))["id"].tolist() == epoch[len(seen)]
            resumed.close()
    assert seen == epoch and not raises
    dataset.close()


def test_an_error_in_the_rest_of_a_pass_that_was_left_is_not_the_last_word(digits, serve):
    lacks = digits.keys()[of_the_engine(digits, 1)[0][9][0]]
    dataset = digits_set(serve("digits", "--count", DIGITS, "--script", f"missing_keys={lacks}"), importance="on")
    next(iter(dataset))
    for _ in range(2):
        with pytest.raises(fuelrail.NotFoundError):
            next(iter(dataset))
        state = dataset.state_dict()
        assert (state["epoch"], state["position"]) == (0, 900)
    dataset.close()


def test_weights_on_a_device_do_not_wait_for_its_stream(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda weights: pinned.append(weights) or weights)
    for weights, is_pinned in [([], False), ([1, 1], False), ([1, 0.5], True)]:
        weights, before = torch.tensor(weights, dtype=torch.float32), len(pinned)
        assert fuelrail.torch._moved(weights, weights.device) is weights
        moved = fuelrail.torch._moved(weights, torch.device("meta"))
        assert (moved.device.type, moved.dtype, moved.shape) == ("meta", torch.float32, weights.shape)
        assert len(pinned) - before == is_pinned


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_batches_on_a_gpu_do_not_wait_for_its_stream(digits):
    dataset = digits_set(digits, device="cuda:0", importance="on", epochs=3)
    torch.ones(1, device="cuda:0")
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = []
        for batch in dataset:
            batches.append((batch["id"], batch["weight"].clone()))
            dataset.report(batch["id"], [10.0 if id % 10 == 0 else 0.1 for id in batch["id"].tolist()])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    dataset.close()
    assert {weight.device.type for _, weight in batches} == {"cuda"}
    assert len({weight for _, weights in batches for weight in weights.tolist()}) > 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_are_refused_with_what_to_do(digits):
    for dataset, context in [(digits_set(digits), "fork"), (digits_set(digits), "spawn")]:
        loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context)
        with pytest.raises(fuelrail.UsageError, match="num_workers=0"):
            next(iter(loader))


def test_ranks_of_the_environment(digits, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    taken = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        with_rank = digits_set(digits)
        assert len(with_rank) == 5
        taken += sum(ids(with_rank), [])
        with_rank.close()
    assert sorted(taken) == list(range(DIGITS))


def test_ranks_are_those_of_when_the_loader_is_opened(digits, monkeypatch):
    taken = []
    for rank in "01":
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        monkeypatch.delenv("RANK", raising=False)
        early = digits_set(digits)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(fuelrail.UsageError, match="RANK is not set") as raised:
            next(iter(early))
        assert "init_process_group" in raised.value.hint
        given = digits_set(digits, rank=int(rank), world=2)
        monkeypatch.setenv("RANK", rank)
        batches = ids(early)
        assert len(batches) == len(early) == 5 and ids(given) == batches
        taken += sum(batches, [])
        early.close(), given.close()
    assert sorted(taken) == list(range(DIGITS))


def test_ranks_that_torch_distributed_has_otherwise_are_refused(digits, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    derived, given = digits_set(digits), digits_set(digits, rank=1, world=2)
    assert len(derived) == len(given) == 5
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(fuelrail.UsageError, match="rank 1 of 2.* rank 0 of 1") as raised:
            iter(derived)
        assert "init_process_group" in raised.value.hint
        derived.close()
        assert sorted(sum(ids(derived), [])) == list(range(DIGITS)) and len(derived) == 10
        assert len(ids(given)) == 5
    finally:
        torch.distributed.destroy_process_group()
    # It stays what it was.
    derived.close(), given.close()
    assert len(derived) == 10
    derived.close()


def test_batches_that_are_not_decoded_come_as_they_are(digits):
    batch = next(iter(loader_over(digits_set(digits, decode=None))))
    assert isinstance(batch, fuelrail.Batch) and len(batch) == 100


def test_a_newcomers_model_learns(digits):
    torch.manual_seed(0)
    model = torch.nn.Linear(784, 10)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = loader_over(digits_set(digits))
    losses = []
    for _ in range(8):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert sum(losses[-10:]) < sum(losses[:10]) / 2


def test_what_is_public_is_annotated():
    members = vars(fuelrail.torch.IterableDataset).items()
    public = [fuelrail.torch.tensors, *(member for name, member in members if name == "__init__" or name[0] != "_")]
    for function in filter(inspect.isfunction, public):
        signature = inspect.signature(function)
        parameters = [one.annotation for one in signature.parameters.values() if one.name != "self"]
        assert inspect.Signature.empty not in [signature.return_annotation, *parameters], function
