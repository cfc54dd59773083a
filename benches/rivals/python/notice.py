"""How long a checkpoint takes on a notice, with a model of a gigabyte: two ranks of `fuelrail-train`, of which one is told to stop.

    fuelrail serve tokens --count 4000 --shard-size 258B --port 9000
    python notice.py --uri http://127.0.0.1:9000/bucket/ --train target/release/fuelrail-train [--rounds 5] [--lead 30] [--json FILE]

Every round trains twice from nothing. Once a signal saves at once; once the ranks know that the machine stays for `--lead` seconds and what a checkpoint
took, and go on for as long as one is still safe. Told are the seconds from the signal to the end of both ranks, the steps between, and the file's
size; and that a run goes on from that step.
"""

import argparse
import json
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from protocol import rank_environment, spread, tell

WORLD, ENDED_BY_NOTICE = 2, 4
MODEL = ["--model", "transformer", "--transformer", "1024,16,12", "--tokens", "129", "--batch-size", "2", "--rate", "0.001"]
EVERY = ["--device", "cpu", "--threads", "1", "--set", "memory_limit_bytes=128MB", "--set", "shards=1", "--set", "pin=false"]


def start(given, folder, more):
    """Both ranks, their output in files."""
    processes = []
    for rank in range(WORLD):
        log = ["--step-log", folder / f"{rank}.jsonl", "--checkpoint", folder / "saved", "--keep", 1]
        command = [str(part) for part in (given.train, given.uri, *MODEL, *EVERY, *log, *more)]
        processes.append(subprocess.Popen(command, env=rank_environment(rank, WORLD, given.port), stdout=open(folder / f"{rank}.out", "w"), stderr=subprocess.STDOUT))
    return processes


def steps(folder):
    path = folder / "0.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stop(given, folder, processes, after):
    """Waits for so many steps more and tells rank 1 to stop: seconds until both have ended, and steps after the signal."""
    first = len(steps(folder))
    while len(steps(folder)) < first + after:
        if any(process.poll() is not None for process in processes):
            raise SystemExit((folder / "0.out").read_text() + (folder / "1.out").read_text())
        time.sleep(0.05)
    told, done = time.monotonic(), len(steps(folder))
    processes[1].send_signal(signal.SIGTERM)
    if [process.wait() for process in processes] != [ENDED_BY_NOTICE] * WORLD:
        raise SystemExit((folder / "0.out").read_text() + (folder / "1.out").read_text())
    return time.monotonic() - told, len(steps(folder)) - done


def run(given, more, after):
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        folder = Path(name)
        ended_s, behind = stop(given, folder, start(given, folder, more), after)
        last = steps(folder)[-1]["step"]
        saved = max((folder / "saved").glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
        gigabytes, step_s = saved.stat().st_size / 1e9, steps(folder)[-1]["wall_ms"] / 1e3
        # The same place, another run: it goes on after the last step.
        stop(given, folder, start(given, folder, []), 1)
        if f"goes on from step {last}," not in (folder / "0.out").read_text():
            raise SystemExit(f"not from step {last}: " + (folder / "0.out").read_text())
        return {"ended_s": ended_s, "steps_behind": behind, "checkpoint_gb": gigabytes, "step_s": step_s}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lead", type=int, default=30)
    parser.add_argument("--dir", help="where checkpoints are written; the system's folder for temporary files")
    parser.add_argument("--port", type=int, default=23_410)
    parser.add_argument("--json")
    given = parser.parse_args()
    kinds = {"at_once": ([], 3), "as_long_as_safe": (["--notice", f"{given.lead}s", "--checkpoint-every", 3], 5)}
    rounds = []
    for number in range(given.rounds):
        rounds.append({name: run(given, more, after) for name, (more, after) in kinds.items()})
        print(f"round {number + 1}: {rounds[-1]}", flush=True)
    ended = {name: spread([one[name]["ended_s"] for one in rounds]) for name in kinds}
    within = all(one[name]["ended_s"] <= given.lead for one in rounds for name in kinds)
    tell({"lead_s": given.lead, "within": within, "ended_s": ended, "rounds": rounds}, given.json, "rounds")


if __name__ == "__main__":
    main()
