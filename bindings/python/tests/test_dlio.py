"""DLIO, the program behind MLPerf Storage, with fuelrail as its data loader. Slow: each run of DLIO imports torch."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import COMMAND

numpy = pytest.importorskip("numpy")
pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("dlio_benchmark", reason="dlio_benchmark is not installed")
pytestmark = pytest.mark.slow

FILES, EVAL_FILES, EPOCHS = 24, 6, 2
# A log of what was delivered for each rank.
RUN = """
import os
from mpi4py import MPI
if "FUELRAIL_AUDIT" in os.environ:
    os.environ["FUELRAIL_AUDIT"] += str(MPI.COMM_WORLD.rank)
from dlio_benchmark.main import main
main()
"""


def filled(data):
    """A data folder of DLIO: pictures of many sizes in NPZ files."""
    for folder, files in [("train", FILES), ("valid", EVAL_FILES)]:
        (data / folder).mkdir(parents=True)
        for i in range(files):
            numpy.savez(data / folder / f"img_{i:02}_of_{files}.npz", x=numpy.full((50 + i, 60, 1), i, "uint8"), y=[0])
    return data


def dlio(data, out, *launcher, settings=(), environment=()):
    """Runs a workload of two epochs over a data folder."""
    workload = {
        "framework": "pytorch",
        "workflow.generate_data": False,
        "workflow.train": True,
        "workflow.evaluation": False,
        "dataset.data_folder": data,
        "dataset.format": "npz",
        "dataset.num_files_train": FILES,
        "dataset.num_files_eval": EVAL_FILES,
        "dataset.num_subfolders_train": 0,
        "dataset.num_subfolders_eval": 0,
        "dataset.record_length": 4096,
        "dataset.record_length_resize": 256,
        "reader.data_loader": "custom",
        "reader.data_loader_classname": "fuelrail.dlio.DataLoader",
        "reader.data_loader_sampler": "none",
        "reader.batch_size": 3,
        "reader.sample_shuffle": "seed",
        "train.epochs": EPOCHS,
        "train.computation_time": 0.001,
        "output.folder": out,
        **dict(settings),
    }
    overrides = [f"++workload.{name}={value}" for name, value in workload.items()]
    small = {"FUELRAIL_MEMORY_LIMIT": "64MiB", "FUELRAIL_SHARDS": "1", "FUELRAIL_PIN": "false"}
    # Open MPI starts neither as root nor with more ranks than cores by itself.
    mpi = dict.fromkeys(["ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"], "1")
    return subprocess.run(
        [*launcher, sys.executable, "-c", RUN, f"hydra.run.dir={out}", *overrides],
        env={**os.environ, **small, **{f"OMPI_{name}": on for name, on in mpi.items()}, **dict(environment)},
        capture_output=True,
        text=True,
        cwd=out.parent,
    )


def steps(out, kind, rank=0):
    """Steps that DLIO counted in each epoch."""
    counted = json.loads((out / f"{rank}_output.json").read_text())
    return [len(counted[str(epoch)]["proc"].get(kind, [])) for epoch in range(1, EPOCHS + 1)]


def once_an_epoch(*logs):
    """Samples that came once in each epoch, by the logs of all ranks; none may be missing, and none come again."""
    checked = subprocess.run([COMMAND, "inspect", "--json", *map(str, logs)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    audit = json.loads(checked.stdout)["audit"]
    assert audit["exactly_once"]
    return [epoch["once"] for epoch in audit["epochs"]]


def test_two_ranks_get_every_sample_of_a_bucket_once_an_epoch(serve, tmp_path):
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed")
    # DLIO itself wants the names of the files only.
    bucket, names, out = serve(filled(tmp_path / "bucket")), tmp_path / "names", tmp_path / "out"
    for file in (tmp_path / "bucket").glob("*/*.npz"):
        (names / file.parent.name).mkdir(parents=True, exist_ok=True)
        (names / file.parent.name / file.name).touch()
    audit = tmp_path / "audit"
    ran = dlio(names, out, "mpirun", "-n", "2", environment={"FUELRAIL_URI": bucket.url, "FUELRAIL_AUDIT": str(audit)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert once_an_epoch(f"{audit}0", f"{audit}1") == [FILES] * EPOCHS
    assert steps(out, "block1") == steps(out, "block1", rank=1) == [FILES // 3 // 2] * EPOCHS


def test_records_of_tfrecord_files_come_once_an_epoch_too(tmp_path):
    shards, out, audit = tmp_path / "data" / "train", tmp_path / "out", tmp_path / "audit"
    (tmp_path / "data" / "valid").mkdir(parents=True)
    subprocess.run([COMMAND, "pack", filled(tmp_path / "files") / "train", shards, "--format", "tfrecord"], check=True)
    settings = {"format": "tfrecord", "num_files_train": 1, "num_files_eval": 0, "num_samples_per_file": FILES}
    settings = {f"dataset.{name}": value for name, value in settings.items()}
    ran = dlio(tmp_path / "data", out, settings=settings, environment={"FUELRAIL_AUDIT": str(audit)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert once_an_epoch(f"{audit}0") == [FILES] * EPOCHS


def test_it_evaluates_and_leaves_epochs_early(tmp_path):
    out, settings = tmp_path / "out", {"workflow.evaluation": True, "evaluation.eval_time": 0}
    settings |= {"train.total_training_steps": 3, "reader.batch_size_eval": 2}
    ran = dlio(filled(tmp_path / "data"), out, settings=settings)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert steps(out, "block1") == [3] * EPOCHS and steps(out, "eval") == [EVAL_FILES // 2] * EPOCHS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset.num_files_train": FILES - 1}, f"{FILES} samples in .*, and {FILES - 1} in the workload"),
        ({"dataset.format": "synthetic"}, "format synthetic is not read"),
    ],
)
def test_what_it_cannot_read_is_an_error_with_a_hint(settings, message, tmp_path):
    data = filled(tmp_path / "data")
    for file in data.glob("*/*.npz"):
        file.rename(file.with_suffix("." + settings.get("dataset.format", "npz")))
    ran = dlio(data, tmp_path / "out", settings=settings)
    assert ran.returncode and re.search(f"UsageError: .*{message}.*; set dataset", ran.stderr), ran.stderr
