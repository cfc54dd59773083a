"""Two workers of Ray Train share an epoch. They are lost in the middle of it, and go on from the checkpoint. Slow: half a minute."""

import json
import pathlib

import pytest
from conftest import DIGITS, SMALL

torch = pytest.importorskip("torch", reason="torch is not installed")
ray = pytest.importorskip("ray", reason="ray is not installed")


def train(config):
    import tempfile

    import torch
    from ray import train
    from torch.utils.data import DataLoader

    import fuelrail.torch

    dataset = fuelrail.torch.IterableDataset(config["uri"], batch_size=50, decode="28x28x1", seed=5, **config["settings"])
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            dataset.load_state_dict(json.loads((pathlib.Path(folder) / "data.json").read_text()))
    model = train.torch.prepare_model(torch.nn.Linear(784, 10))
    optimiser = torch.optim.Adam(model.parameters())
    rank, step = train.get_context().get_world_rank(), 0
    # The data set takes its rank from torch.distributed: no prepare_data_loader.
    for batch in DataLoader(dataset, batch_size=None, num_workers=0):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"]).backward()
        optimiser.step()
        step += 1
        with open(config["log"], "a") as log:
            log.write(json.dumps({"rank": rank, "ids": batch["id"].tolist()}) + "\n")
        if step == 4 and not checkpoint:
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "data.json").write_text(json.dumps(dataset.state_dict()))
                train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(folder) if rank == 0 else None)
            raise RuntimeError("lost a worker")
    dataset.close()


@pytest.mark.slow
def test_two_workers_share_an_epoch_and_resume(digits, tmp_path):
    pytest.importorskip("ray.train.torch", reason="ray[train] is not installed")
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    log = tmp_path / "log"
    trainer = TorchTrainer(
        train,
        train_loop_config={"uri": digits.url + "training/", "settings": SMALL, "log": str(log)},
        run_config=RunConfig(storage_path=str(tmp_path / "ray"), failure_config=FailureConfig(max_failures=1)),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        torch_config=TorchConfig(backend="gloo"),
    )
    # The workers import this file.
    path = {"env_vars": {"PYTHONPATH": str(pathlib.Path(__file__).parent)}}
    ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, log_to_driver=False, runtime_env=path)
    try:
        trainer.fit()
    finally:
        ray.shutdown()
    taken = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry["rank"] for entry in taken].count(1) == 10
    assert sorted(id for entry in taken for id in entry["ids"]) == list(range(DIGITS))
