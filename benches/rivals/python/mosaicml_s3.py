"""mosaicml-streaming over S3: the objects packed into MDS shards, downloaded to an empty local cache in every pass.

Since version 0.13 it speaks no plain HTTP any more; over S3 it downloads whole shards with boto3.
"""

import os
import tempfile
from importlib.metadata import version

from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from packing import packed_s3
from protocol import DUMMY_KEYS, Task, main, serve


class Payload(StreamingDataset):
    """Hands over the bytes alone."""

    def __getitem__(self, index):
        return super().__getitem__(index)["bin"]


def run(task: Task) -> None:
    endpoint, remote = packed_s3(task)
    os.environ.update(DUMMY_KEYS, S3_ENDPOINT_URL=endpoint)

    def loader():
        clean_stale_shared_memory()
        with tempfile.TemporaryDirectory(prefix="fuelrail-mosaicml-", ignore_cleanup_errors=True) as cache:
            samples = Payload(
                remote=remote,
                local=cache,
                shuffle=True,
                shuffle_seed=task.seed + task.passes,
                batch_size=task.batch_size,
                num_canonical_nodes=1,
            )
            yield from DataLoader(samples, batch_size=task.batch_size, num_workers=task.workers, collate_fn=list)

    settings = f"mosaicml-streaming {version('mosaicml-streaming')}, MDS shards over S3, cold local cache, {task.workers} workers"
    serve(task, loader, settings)


if __name__ == "__main__":
    main(run)
