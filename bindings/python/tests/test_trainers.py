"""Other people's trainers over the data set: an epoch exactly once, and a state that they save in the middle of one resumes there."""

import json
import subprocess
import sys

import pytest
from conftest import DIGITS, SMALL

import fuelrail

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader  # noqa: E402


def digits_set(bucket, **settings):
    settings = {"batch_size": 100, "decode": "28x28x1", "seed": 5, **SMALL, **settings}
    return fuelrail.torch.IterableDataset(bucket.url + "training/", **settings)


def of_the_engine(bucket, epochs=2):
    with fuelrail.Loader(bucket.url + "training/", batch_size=100, seed=5, epochs=epochs, **SMALL) as loader:
        return [list(batch.ids) for batch in loader]


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"])


def test_lightning_trains_and_resumes_in_mid_epoch(digits, tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(784, 10), []

        def training_step(self, batch, _):
            self.seen.append(batch["id"].tolist())
            return loss_of(self.layer, batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    def fit(checkpoint=None, every=None):
        checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=every)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            callbacks=[checkpoints] if every else [],
            enable_checkpointing=bool(every),
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            default_root_dir=tmp_path,
        )
        model, dataset = Model(), digits_set(digits)
        trainer.fit(model, stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=0), ckpt_path=checkpoint)
        dataset.close()
        return model.seen

    whole = of_the_engine(digits)
    assert fit(every=7) == whole
    assert sorted(sum(whole[:10], [])) == list(range(DIGITS))
    for step in (7, 14):
        assert fit(checkpoint=tmp_path / f"step={step}.ckpt") == whole[step:], step


# The launcher runs the script again for the second rank, which has LOCAL_RANK and WORLD_SIZE but no RANK; here they come after the data set.
LAUNCHED = """
import json, sys
import fuelrail.torch, lightning, torch
url, folder = sys.argv[1:]
settings = {"batch_size": 50, "decode": "28x28x1", "seed": 5, "memory_limit": "64MiB", "shards": 1, "pin": False}
dataset = fuelrail.torch.IterableDataset(url, **settings)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(784, 10), []

    def training_step(self, batch, _):
        self.seen.append(batch["id"].tolist())
        return torch.nn.functional.cross_entropy(self.layer(batch["image"].flatten(1) / 255), batch["label"])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

without = dict.fromkeys(["enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger"], False)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", default_root_dir=folder, **without)
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0))
with open(f"{folder}/{trainer.global_rank}.json", "w") as told:
    json.dump(model.seen, told)
dataset.close()
"""


@pytest.mark.slow
def test_lightnings_own_launcher_deals_an_epoch_to_its_ranks(digits, tmp_path, monkeypatch):
    pytest.importorskip("lightning", reason="lightning is not installed")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "main.py").write_text(LAUNCHED)
    subprocess.run([sys.executable, tmp_path / "main.py", digits.url + "training/", tmp_path], check=True, timeout=180)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(batches) for batches in ranks] == [10, 10]
    assert sorted(sum(sum(ranks, []), [])) == list(range(DIGITS))


def test_accelerate_trains_and_resumes_in_mid_epoch(digits, tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

    def prepared():
        # The data set knows its rank: what accelerate would deal out again stays as it is.
        accelerator, dataset, model = accelerate.Accelerator(cpu=True), digits_set(digits), torch.nn.Linear(784, 10)
        model, optimiser = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
        accelerator.register_for_checkpointing(dataset)
        return accelerator, dataset, model, optimiser

    def train(accelerator, dataset, model, optimiser, batches):
        seen = []
        for batch in batches:
            accelerator.backward(loss_of(model, batch))
            optimiser.step()
            optimiser.zero_grad()
            seen.append(batch["id"].tolist())
            if len(seen) == 4:
                accelerator.save_state(tmp_path / "state")
        return seen

    whole = of_the_engine(digits)
    parts = prepared()
    loader = DataLoader(parts[1], batch_size=None, num_workers=0)
    assert train(*parts, loader) == whole[:10]
    parts = prepared()
    parts[0].load_state(tmp_path / "state")
    loader = DataLoader(parts[1], batch_size=None, num_workers=0)
    assert train(*parts, loader) == whole[4:10]
    assert train(*parts, loader) == whole[10:]
    # Through prepare() as well, which puts batches on the device.
    accelerator, dataset, model, optimiser = prepared()
    loader = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=0))
    assert train(accelerator, dataset, model, optimiser, loader) == whole[:10]


def test_torchdata_trains_and_resumes_in_mid_epoch(digits):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    whole, states, seen = of_the_engine(digits), [], []
    model = torch.nn.Linear(784, 10)
    optimiser = torch.optim.Adam(model.parameters())
    loader = stateful.StatefulDataLoader(digits_set(digits), batch_size=None, num_workers=0)
    for batch in loader:
        optimiser.zero_grad()
        loss_of(model, batch).backward()
        optimiser.step()
        seen.append(batch["id"].tolist())
        states.append(loader.state_dict())
    assert seen == whole[:10]
    resumed = stateful.StatefulDataLoader(digits_set(digits), batch_size=None, num_workers=0)
    resumed.load_state_dict(states[5])
    assert [batch["id"].tolist() for batch in resumed] == whole[6:10]
    assert [batch["id"].tolist() for batch in resumed] == whole[10:]
