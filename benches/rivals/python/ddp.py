"""ResNet-18 on pictures of 32 pixels a side, two ranks on the CPU: `fuelrail-train` beside PyTorch's DistributedDataParallel.

    fuelrail serve digits --count 3200 --port 9000
    python ddp.py --uri http://127.0.0.1:9000/bucket/training/ --train target/release/fuelrail-train [--pairs 10] [--json FILE]
    python ddp.py … --checkpoints        # instead, without PyTorch: steps with a checkpoint after every twentieth, and without

Both begin with the same weights (those of a run of `fuelrail-train` whose rate is too small to move them) and take the same batches through the same
loader: from Python through its package. Told are the losses of the first steps, as far apart as they are and as PyTorch's own are with another number
of threads, whose sums it adds up in another order; and the time of a step in runs that take turns. The torch of this interpreter should be the
version that `fuelrail-train` is linked with.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from protocol import rank_environment, spread, tell

WORLD, BATCH, MOMENTUM, SEED, WARM, NEAR = 2, 32, 0.9, 0, 10, 1e-3
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
DECODE = {"decode": "32x32x3", "decode_fit": "center-crop"}


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet18(nn.Module):
    """As torchvision's, by the same names."""

    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for number, (inside, outside) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], 1):
            blocks = nn.Sequential(Block(inside, outside, 1 if number == 1 else 2), Block(outside, outside, 1))
            setattr(self, f"layer{number}", blocks)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(x.mean((2, 3)))


def weights(path):
    """The model's tensors of a checkpoint."""
    with open(path, "rb") as file:
        data = file.read()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    found = {}
    for name, about in header.items():
        if name.startswith("model.") and about["dtype"] == "F32":
            begin, end = about["data_offsets"]
            array = np.frombuffer(body[begin:end], np.float32).reshape(about["shape"])
            found[name.removeprefix("model.")] = torch.from_numpy(array.copy())
    return found


def rank_main(given):
    """One rank of the Python side: a line of JSON a step."""
    import fuelrail

    torch.set_num_threads(given.threads)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    loader = fuelrail.Loader(given.uri, batch_size=BATCH, seed=SEED, rank=rank, world=WORLD, memory_limit="128MB", shards=1, pin=False, **DECODE)
    model = ResNet18(given.classes)
    missing, unexpected = model.load_state_dict(weights(given.weights), strict=False)
    if unexpected or any("num_batches_tracked" not in name for name in missing):
        raise SystemExit(f"other names: {missing} {unexpected}")
    model = nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=given.rate, momentum=MOMENTUM)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    begun = time.perf_counter()
    for batch in loader:
        waited = time.perf_counter() - begun
        pixels = torch.from_numpy(np.array(batch.numpy())).permute(0, 3, 1, 2).float()
        input = ((pixels / 255 - mean) / std).contiguous()
        labels = torch.from_numpy(np.asarray(batch.labels).astype(np.int64))
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(input), labels)
        loss.backward()
        optimiser.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        line = {"loss": total.item() / WORLD, "ids": list(batch.ids), "data_wait_ms": waited * 1e3}
        line["wall_ms"] = (time.perf_counter() - begun) * 1e3
        print(json.dumps(line), flush=True)
        begun = time.perf_counter()
    dist.destroy_process_group()


def ranks(command, folder, port):
    """Runs two ranks of a command to their end; `{rank}` in its arguments is the rank."""
    processes = []
    for rank in range(WORLD):
        env = rank_environment(rank, WORLD, port, OMP_NUM_THREADS=1)
        out = open(folder / f"{rank}.out", "w", encoding="utf-8")
        args = [str(part).replace("{rank}", str(rank)) for part in command]
        processes.append(subprocess.Popen(args, env=env, stdout=out, stderr=subprocess.STDOUT))
    if any([process.wait() for process in processes]):
        raise SystemExit((folder / "0.out").read_text() + (folder / "1.out").read_text())


def ours(given, rate, port, more=()):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = [part for key, value in DECODE.items() if key != "decode" for part in ("--set", f"{key}={value}")]
        command = [given.train, given.uri, "--model", "resnet18", "--decode", DECODE["decode"], *settings, "--global-batch-size", BATCH * WORLD]
        command += ["--rate", rate, "--seed", SEED, "--threads", 1, "--device", "cpu", "--step-log", folder / "{rank}.jsonl", "--set", "memory_limit_bytes=128MB"]
        ranks([*command, "--set", "shards=1", "--set", "pin=false", *more], folder, port)
        return [json.loads(line) for line in open(folder / "0.jsonl", encoding="utf-8")]


def theirs(given, port, threads=1):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, "--rank", "--uri", given.uri, "--weights", given.weights, "--classes", given.classes]
        command += ["--rate", given.rate, "--threads", threads]
        ranks(command, folder, port)
        lines = (folder / "0.out").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def apart(some, others):
    """How far losses are apart: by step, and in how many steps before the first in which they are not near."""
    by_step = [abs(a["loss"] - b["loss"]) for a, b in zip(some, others)]
    near = next((step for step, gap in enumerate(by_step) if gap > NEAR), len(by_step))
    return {"steps": len(by_step), "near_for": near, "max": max(by_step), "by_step": by_step}


def step_ms(steps):
    return statistics.mean(step["wall_ms"] for step in steps[WARM:])


def checkpoints(given, port):
    """Steps with checkpoints that are saved beside them, over steps without, in runs that take turns."""
    pairs = []
    for pair in range(given.pairs):
        with tempfile.TemporaryDirectory() as saved:
            sides = [("with", ["--checkpoint", saved, "--checkpoint-every", 20]), ("without", [])]
            done = {name: step_ms(ours(given, given.rate, port, more)) for name, more in (sides if pair % 2 == 0 else sides[::-1])}
        pairs.append({**done, "ratio": done["with"] / done["without"]})
        print(f"pair {pair + 1}: {pairs[-1]}", flush=True)
    tell({"step_ratio": spread([pair["ratio"] for pair in pairs]), "pairs": pairs}, given.json, "pairs")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--train")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--rank", action="store_true")
    parser.add_argument("--weights")
    parser.add_argument("--classes", type=int, default=10)
    given = parser.parse_args()
    if given.rank:
        return rank_main(given)
    port = 23_400
    if given.checkpoints:
        return checkpoints(given, port)
    with tempfile.TemporaryDirectory() as saved:
        ours(given, 1e-30, port, ["--checkpoint", saved])
        given.weights = next(Path(saved).glob("*.safetensors"))
        pairs = []
        for pair in range(given.pairs):
            sides = [("fuelrail", lambda: ours(given, given.rate, port)), ("ddp", lambda: theirs(given, port + 1))]
            done = {name: run() for name, run in (sides if pair % 2 == 0 else sides[::-1])}
            if pair == 0:
                same = all(a["ids"] == b["ids"] for a, b in zip(done["fuelrail"], done["ddp"], strict=True))
                losses = {"fuelrail": apart(done["fuelrail"], done["ddp"]), "ddp_with_two_threads": apart(theirs(given, port + 1, 2), done["ddp"])}
                print(f"the same samples: {same}; losses apart: {losses}", flush=True)
            waits = {name: sum(step["data_wait_ms"] for step in steps[WARM:]) / sum(step["wall_ms"] for step in steps[WARM:]) for name, steps in done.items()}
            pairs.append({"step_ms": {name: step_ms(steps) for name, steps in done.items()}, "data_wait_share": waits})
            print(f"pair {pair + 1}: {pairs[-1]}", flush=True)
    result = {
        "torch": torch.__version__,
        "same_samples": same,
        "rate": given.rate,
        "loss_apart": losses,
        "step_ratio": spread([pair["step_ms"]["fuelrail"] / pair["step_ms"]["ddp"] for pair in pairs]),
        "data_wait_share": statistics.median(pair["data_wait_share"]["fuelrail"] for pair in pairs),
        "pairs": pairs,
    }
    tell(result, given.json, "pairs")


if __name__ == "__main__":
    main()
