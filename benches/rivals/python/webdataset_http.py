"""webdataset over HTTP: the objects packed into tar shards, streamed by the `curl` it starts per shard."""

from importlib.metadata import version

import webdataset
from torch.utils.data import DataLoader

from packing import packed_shards
from protocol import Task, main, serve


def payload(sample: dict) -> bytes:
    return sample["bin"]


def run(task: Task) -> None:
    shards = packed_shards(task)
    # Samples are shuffled in a buffer of a thousand, as its manual shows; of large ones as many as half the memory holds.
    mean = max(1, task.wanted // len(task.objects))
    buffer = max(1, min(1000, task.arena // 2 // mean))

    def loader():
        samples = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=task.seed + task.passes, empty_check=False)
        batches = samples.shuffle(buffer, seed=task.seed + task.passes).map(payload)
        return DataLoader(batches, batch_size=task.batch_size, num_workers=task.workers, collate_fn=list)

    settings = f"webdataset {version('webdataset')}, {len(shards)} tar shards over HTTP (curl), buffer of {buffer}, {task.workers} workers"
    serve(task, loader, settings)


if __name__ == "__main__":
    main(run)
