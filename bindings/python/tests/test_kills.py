"""Killed at random moments, a run goes on from the last state that was written, and delivers what it would have without."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time

import pytest
from conftest import COMMAND, SMALL

import fuelrail

# `KILLS=1000` for as many; some 0.15 s each.
KILLS = int(os.environ.get("KILLS", "30"))

RANK = """
import json, sys
import fuelrail
settings = json.loads(sys.argv[1])
with fuelrail.Loader(**settings) as loader:
    for batch in loader:
        print(json.dumps([list(batch.ids), loader.state_dict()]), flush=True)
print("null", flush=True)
"""


def lines(settings, draw=None):
    """The whole lines of a run, which is killed at a moment drawn by `draw`."""
    run = subprocess.Popen([sys.executable, "-c", RANK, json.dumps(settings)], stdout=subprocess.PIPE)
    if draw is not None:
        head = run.stdout.readline()
        time.sleep(draw.random() * 0.02)
        run.kill()
        return (head + run.communicate()[0]).split(b"\n")[:-1]
    return run.communicate()[0].split(b"\n")[:-1]


def test_a_run_that_is_killed_delivers_every_sample_once(digits):
    settings = {"uri": digits.url + "training/", "batch_size": 8, "epochs": 40, "seed": 5, **SMALL}
    *whole, end = map(json.loads, lines(settings))
    assert end is None and len(whole) == 40 * 125
    draw, kills = random.Random(7), 0
    while kills < KILLS:
        state, seen = None, []
        while kills < KILLS:
            for line in map(json.loads, lines({**settings, "state": state}, draw)):
                if line is None:
                    break
                seen.append(line[0])
                state = line[1]
            else:
                kills += 1
                continue
            break
        assert seen == [ids for ids, _ in whole[: len(seen)]], f"after {kills} kills"
        print(f"{kills} kills, {len(seen)} batches")


# What a newcomer writes; a line for each batch has its step, ids and the hash of its pixels.
NEWCOMER = """
import hashlib, json, os, sys
import fuelrail.torch, torch
settings, checkpoint, epochs = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dataset = fuelrail.torch.IterableDataset(**settings)
loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
model, step = torch.nn.Linear(784, 10), 0
optimiser = torch.optim.Adam(model.parameters())
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    dataset.load_state_dict(saved["data"])
    step = saved["step"]
while dataset.state_dict()["epoch"] < epochs:
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        print(json.dumps([step, batch["id"].tolist(), hashlib.sha256(batch["image"].numpy().tobytes()).hexdigest()]), flush=True)
        if step % 4 == 0:
            saved = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "data": dataset.state_dict(), "step": step}
            torch.save(saved, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
"""


def test_a_newcomers_training_that_is_killed_sees_what_the_command_reads(digits, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    xxhash = pytest.importorskip("xxhash", reason="xxhash is not installed, which mosaicml-streaming brings along")
    settings = {"uri": digits.url + "training/", "batch_size": 64, "decode": "28x28x1", "seed": 7, **SMALL}
    # The command logs the ids of each batch, and hashes all pixels in order.
    options = ["--batch-size", "64", "--decode", "28x28x1", "--seed", "7", "--memory-limit", "64MiB", "--shards", "1", "--pin", "false"]
    command = [COMMAND, "bench", "read", settings["uri"], *options, "--epochs", "3", "--audit", tmp_path / "audit", "--json"]
    read = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    logged = [json.loads(line)["ids"] for line in (tmp_path / "audit").read_text().splitlines()[1:]]
    expected, hashed = [], xxhash.xxh3_128()
    with fuelrail.Loader(**settings, epochs=3) as loader:
        for batch in loader:
            pixels = batch.numpy().tobytes()
            hashed.update(pixels)
            expected.append([len(expected) + 1, list(batch.ids), hashlib.sha256(pixels).hexdigest()])
    assert [ids for _, ids, _ in expected] == logged and len(logged) == 3 * 16
    assert hashed.hexdigest() == read["content_hash"]
    started = [sys.executable, "-c", NEWCOMER, json.dumps(settings), tmp_path / "checkpoint", "3"]
    draw, told = random.Random(), 0
    for kill in (draw.randrange(5, 12), draw.randrange(5, 12), None):
        run = subprocess.Popen(started, stdout=subprocess.PIPE)
        lines = [run.stdout.readline() for _ in range(kill or 0)]
        if kill:
            time.sleep(draw.random() * 0.01)
            run.kill()
        # The last line may be torn.
        part = list(map(json.loads, b"".join([*lines, run.communicate()[0]]).split(b"\n")[:-1]))
        first, last = part[0][0], part[-1][0]
        print(f"{kill or 'no'} lines before the kill: steps {first} to {last}")
        assert first == told // 4 * 4 + 1 or first == told // 4 * 4 - 3, "it goes on from the last checkpoint, or from the one before"
        assert part == expected[first - 1 : last]
        told = last
    assert run.returncode == 0 and told == len(expected)
