"""The loops to compare with, in Python torch: a model on data that lies on the device, behind a DataLoader, or behind Fuelrail's package; and a
look whether what that brings to the device is what it brings to the host. Prints one line of JSON.

    loops.py resident|loader|feed MODEL SIZE BATCH SECONDS DEVICE [URL FOLDER WORKERS]
    loops.py check - SIZE BATCH - DEVICE URL
"""

import io
import json
import pathlib
import sys
import time
import urllib.request


def refuse(why):
    print(f"refused: {why}")
    sys.exit(3)


try:
    import torch
    import torchvision
except ImportError as missing:
    refuse(f"Python has no {missing.name}")


class Photos(torch.utils.data.Dataset):
    """Photos of a served folder, each in the folder of its class; read over HTTP, cut and flipped at random, left as bytes."""

    def __init__(self, url, folder, size):
        paths = sorted(path.relative_to(folder).as_posix() for path in pathlib.Path(folder).rglob("*.jpg"))
        classes = sorted({path.rsplit("/", 1)[0] for path in paths})
        self.items = [(url.rstrip("/") + "/" + path, classes.index(path.rsplit("/", 1)[0])) for path in paths]
        cut = [torchvision.transforms.RandomResizedCrop(size), torchvision.transforms.RandomHorizontalFlip()]
        self.change = torchvision.transforms.Compose([*cut, torchvision.transforms.PILToTensor()])

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        from PIL import Image

        url, label = self.items[index]
        with urllib.request.urlopen(url) as answer:
            return self.change(Image.open(io.BytesIO(answer.read())).convert("RGB")), label


def batches(kind, size, batch, device, rest):
    """Endless batches of bytes and labels, and how long each was waited for."""
    if kind == "resident":
        made = [(torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=device), torch.randint(0, 10, (batch,), device=device)) for _ in range(8)]
        while True:
            for pair in made:
                yield *pair, 0.0
    url, folder, workers = rest
    if kind == "feed":
        yield from fed(url + "train/", size, batch, device, {"decode_fit": "random-crop", "decode_flip": True, "decode_layout": "nchw", "memory_limit": "256MB" if device == "cpu" else "8GB"})
    loader = torch.utils.data.DataLoader(
        Photos(url, folder, size), batch, shuffle=True, num_workers=int(workers), pin_memory=device != "cpu", drop_last=True,
        persistent_workers=True, prefetch_factor=4)
    while True:
        begun = time.monotonic()
        for pixels, labels in loader:
            yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True), time.monotonic() - begun
            begun = time.monotonic()


def fed(url, size, batch, device, settings):
    """Endless batches of Fuelrail's package, on the device."""
    import fuelrail.torch

    on = {} if device == "cpu" else {"device": device}
    dataset = fuelrail.torch.IterableDataset(url, batch_size=batch, decode=f"{size}x{size}x3", epochs=1 << 20, drop_last=True, **settings, **on)
    begun = time.monotonic()
    for got in dataset:
        yield got["image"], got["label"], time.monotonic() - begun
        begun = time.monotonic()


def check(url, size, batch, device):
    """The same batches on the device and on the host, whichever stream is current."""
    import fuelrail.torch

    settings = {"batch_size": batch, "decode": f"{size}x{size}x1", "decode_fit": "center-crop", "memory_limit": "256MB", "shards": 1, "epochs": 2}
    on = {} if device == "cpu" else {"device": device}
    pairs = zip(fuelrail.torch.IterableDataset(url, **settings, **on), fuelrail.torch.IterableDataset(url, **settings), strict=True)
    side = None if device == "cpu" else torch.cuda.Stream()
    for number, (ours, host) in enumerate(pairs):
        with torch.cuda.stream(side if number % 2 else None):
            same = [(ours[name] + 0).cpu().equal(host[name]) for name in ("image", "label", "weight")]
        if not all(same) or str(ours["image"].device).split(":")[0] != device:
            sys.exit(f"batch {number} differs on the device: {same}")
    print(json.dumps({"batches": number + 1}))


def main():
    kind, name, size, batch, seconds, device, *rest = sys.argv[1:]
    size, batch, seconds = int(size), int(batch), float(seconds)
    if device != "cpu" and not torch.cuda.is_available():
        refuse("torch finds no CUDA device")
    if kind == "check":
        return check(*rest, size, batch, device)
    torch.backends.cudnn.benchmark = True
    model = getattr(torchvision.models, name)().to(device, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)
    spread = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1)
    steps, begun = [], time.monotonic()
    for pixels, labels, wait in batches(kind, size, batch, device, rest):
        with torch.autocast("cpu" if device == "cpu" else "cuda", dtype=torch.bfloat16):
            input = ((pixels.float() / 255 - mean) / spread).contiguous(memory_format=torch.channels_last)
            loss = torch.nn.functional.cross_entropy(model(input), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if device != "cpu" and len(steps) % 20 == 19:
            torch.cuda.synchronize()  # bounds how far the host runs ahead; 20 steps are timed together
        steps.append((time.monotonic(), wait))
        if time.monotonic() - begun > seconds:
            break
    steps = steps[len(steps) // 4 // 20 * 20 :]  # the first quarter warms up
    spent, count = steps[-1][0] - steps[0][0], len(steps) - 1
    if count < 1:
        refuse("no step was done in time")
    waited = sum(wait for _, wait in steps[1:]) / spent
    print(json.dumps({"steps": count, "images_per_s": count * batch / spent, "step_ms": spent / count * 1e3, "data_wait": waited}))


main()
