"""Whether memory grows under a Python loop that is slow for two seconds at a time, by the criterion of `cargo x bench soak`.

    fuelrail serve photos --count 2000 --port 9000
    python soak.py --uri http://127.0.0.1:9000/bucket/ --minutes 30 [--json FILE]

Batches are decoded, looked at as NumPy arrays, and some kept for a while; every few seconds the loop stands still for two. A new loader goes on
from the state every few epochs. Told is the slope of the process's anonymous memory after the first tenth, with its 95 % interval: at most 8 MiB an
hour is flat, and an interval of 8 MiB or more tells nothing. The arena is left out: its limit is fixed, and how much of it a loader touches before the
next one opens is chance.
"""

import argparse
import collections
import random
import statistics
import time

import fuelrail

from protocol import tell

EVERY_S, SLOW_S, LIMIT_MIB = 0.5, 2.0, 8.0


def anonymous_mib(arena):
    """Anonymous memory outside the mapping that holds the address `arena`."""
    total, counts = 0, True
    with open("/proc/self/smaps", encoding="utf-8") as file:
        for line in file:
            word, *values = line.split()
            if word == "Anonymous:":
                total += int(values[0]) if counts else 0
            elif not word.endswith(":"):
                start, end = (int(part, 16) for part in word.split("-"))
                counts = not start <= arena < end
    return total / 1024


def slope(points):
    """MiB an hour with its 95 % interval, as `Slope::of` of the lab's soak has it."""
    points = points[len(points) // 10 :]
    count, mean_x, mean_y = len(points), statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    line = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    left = [y - mean_y - line * (x - mean_x) for x, y in points]
    squares = sum(r * r for r in left)
    r = min(0.99, max(0.0, sum(a * b for a, b in zip(left, left[1:])) / squares)) if squares else 0.0
    error = (squares / (count - 2) / spread) ** 0.5 * ((1 + r) / (1 - r)) ** 0.5
    independent = max(1.0, count * (1 - r) / (1 + r) - 2)
    reach = (1.96 + 2.4 / independent + 2.8 / independent**2) * error
    return [per_s * 3600 for per_s in (line, line - reach, line + reach)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--json")
    given = parser.parse_args()
    draws, points, kept, total, samples, opened, state = random.Random(5), [], collections.deque(maxlen=2), 0, 0, 0, None
    begun = time.monotonic()
    told = slow = begun
    over = begun + given.minutes * 60
    while time.monotonic() < over:
        settings = {"decode": "64x64x3", "decode_fit": "random-crop", "cache_limit": "64MiB", "memory_limit": "192MiB", "shards": 1}
        with fuelrail.Loader(given.uri, batch_size=32, epochs=1 << 20, seed=1, state=state, **settings) as loader:
            opened += 1
            for number, batch in enumerate(loader):
                pixels = batch.numpy()
                total += int(pixels[:, 0, 0, 0].sum())
                samples += len(batch)
                if draws.random() < 0.05:
                    kept.append(batch)
                now = time.monotonic()
                if now >= slow:
                    time.sleep(SLOW_S)
                    slow = now + SLOW_S + draws.uniform(1, 5)
                if now - told >= EVERY_S:
                    told = now
                    points.append((now - begun, anonymous_mib(pixels.ctypes.data)))
                if now >= over or number >= 600:
                    break
            state = loader.state_dict()
            kept.clear()
            del batch, pixels
    at, low, high = slope(points)
    result = {
        "minutes": given.minutes,
        "samples": samples,
        "opened": opened,
        "anonymous_mib": {"second_tenth": statistics.median(y for _, y in points[len(points) // 10 : len(points) // 5]), "last_tenth": statistics.median(y for _, y in points[-(len(points) // 10) :])},
        "slope_mib_per_h": {"at": at, "low": low, "high": high},
        "points": [{"at_s": at_s, "anonymous_mib": mib} for at_s, mib in points[::10]],
        "holds": None if high - low >= LIMIT_MIB else high <= LIMIT_MIB,
    }
    tell(result, given.json, "points")


if __name__ == "__main__":
    main()
