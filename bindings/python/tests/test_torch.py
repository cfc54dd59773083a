"""The data set for PyTorch, in a DataLoader and in torchdata's StatefulDataLoader."""

import copy
import json

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
