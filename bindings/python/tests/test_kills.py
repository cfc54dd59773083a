"""Killed at random moments, a run goes on from the last state that was written, and delivers what it would have without."""

import json
import os
import random
import subprocess
import sys
import time

from conftest import SMALL

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
