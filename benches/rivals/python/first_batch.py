"""The first batch from Python beside the one from Rust: pairs of starts, each a process of its own, the order of a pair changing.

    fuelrail serve photos --count 2000 --port 9000
    python first_batch.py --uri http://127.0.0.1:9000/bucket/ --command target/release/fuelrail [--json FILE]

Timed is from before the listing to the first batch of 64 in hand, in the process, and from Python apart from it what starting the interpreter and
importing the package take. Then what Python adds to a batch that is there: the time around the call, less what the engine counts inside it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

from protocol import tell

PAIRS, BATCH = 30, 64
# Between which of the sorted differences their median lies, with 95 %: a binomial's quantiles.
LOW, HIGH = 9, 20

PROGRAM = f"""
import sys, time
begun = time.perf_counter()
import fuelrail
imported = time.perf_counter()
with fuelrail.Loader(sys.argv[1], batch_size={BATCH}, memory_limit="256MiB", shards=1) as loader:
    next(iter(loader))
    print(imported - begun, time.perf_counter() - imported)
"""


# Batches that are there when they are asked for.
OVERHEAD = f"""
import sys, time
import fuelrail
with fuelrail.Loader(sys.argv[1], batch_size={BATCH}, epochs=1000, memory_limit="256MiB", cache_limit="128MiB", shards=1) as loader:
    calls_s = 0.0
    for n in range(300):
        if n == 100:
            calls_s, inside_s = 0.0, loader.stats()["data_wait_s"]
        time.sleep(0.005)
        begun = time.perf_counter()
        batch = next(loader)
        calls_s += time.perf_counter() - begun
    print(1e6 * (calls_s - (loader.stats()["data_wait_s"] - inside_s)) / 200, loader.stats()["readiness"])
"""


def overhead(uri):
    said = subprocess.run([sys.executable, "-c", OVERHEAD, uri], check=True, capture_output=True, text=True).stdout
    us, readiness = map(float, said.split())
    return {"us": us, "readiness": readiness}


def python(uri):
    begun = time.perf_counter()
    said = subprocess.run([sys.executable, "-c", PROGRAM, uri], check=True, capture_output=True, text=True).stdout
    whole_s = time.perf_counter() - begun
    import_s, first_s = map(float, said.split())
    return {"first_batch_s": first_s, "import_s": import_s, "process_s": whole_s}


def rust(command, uri):
    args = ["bench", "read", uri, "--batch-size", str(BATCH), "--memory-limit", "256MiB", "--shards", "1", "--json"]
    said = subprocess.run([command, *args], check=True, capture_output=True, text=True).stdout
    return {"first_batch_s": json.loads(said)["first_batch_us"] / 1e6}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--uri", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--json")
    given = parser.parse_args()
    python(given.uri), rust(given.command, given.uri)
    pairs = []
    for pair in range(PAIRS):
        first = lambda: python(given.uri)
        second = lambda: rust(given.command, given.uri)
        if pair % 2:
            there, here = second(), first()
        else:
            here, there = first(), second()
        pairs.append({"python": here, "rust": there})
    overheads = [overhead(given.uri) for _ in range(5)]
    apart = sorted(pair["python"]["first_batch_s"] - pair["rust"]["first_batch_s"] for pair in pairs)
    middle = lambda side, what: statistics.median(pair[side][what] for pair in pairs)
    result = {
        "difference_s": {"median": statistics.median(apart), "low": apart[LOW], "high": apart[HIGH], "count": PAIRS},
        "python_s": middle("python", "first_batch_s"),
        "rust_s": middle("rust", "first_batch_s"),
        "import_s": middle("python", "import_s"),
        "process_s": middle("python", "process_s"),
        "overhead_us": statistics.median(run["us"] for run in overheads),
        "overheads": overheads,
        "pairs": pairs,
    }
    tell(result, given.json, "pairs")


if __name__ == "__main__":
    main()
