"""Fuelrail's own Python package: views of samples in batches that stay where they landed."""

import time

try:
    import fuelrail
except ModuleNotFoundError:
    raise SystemExit("fuelrail is not installed: run ./scripts/wheel, then pip install the wheel into this environment")

from protocol import Task, main, serve

EPOCHS = 1 << 20


def rest(loader) -> None:
    """Waits until the loader has fetched all it wants to: a pass pays for as much of the next one as the one before paid for it."""
    before = None
    while True:
        stats = loader.stats()
        owed = stats["asks"] + stats["retries"] - stats["hits"] - stats["shared"]
        if before == owed <= next((gate["passed"] for gate in stats["gates"] if gate["name"] == "fetch"), 0):
            return
        before = owed
        time.sleep(0.005)


def run(task: Task) -> None:
    loader = fuelrail.Loader(
        task.uri, manifest=task.manifest, batch_size=task.batch_size, epochs=EPOCHS, seed=task.seed, memory_limit=task.arena, shards=1, pin=False
    )
    batches = iter(loader)
    steps = -(-len(task.objects) // task.batch_size)

    def epoch():
        for _ in range(steps):
            batch = next(batches)
            yield [batch.sample(i) for i in range(len(batch))]
        rest(loader)

    serve(task, epoch, f"fuelrail {fuelrail.__version__}, one shard, defaults")


if __name__ == "__main__":
    main(run)
