"""Fuelrail's own Python package: views of samples in batches that stay where they landed."""

try:
    import fuelrail
except ModuleNotFoundError:
    raise SystemExit("fuelrail is not installed: run ./scripts/wheel, then pip install the wheel into this environment")

from protocol import Task, main, serve

EPOCHS = 1 << 20


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

    serve(task, epoch, f"fuelrail {fuelrail.__version__}, one shard, defaults")


if __name__ == "__main__":
    main(run)
