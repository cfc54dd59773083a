"""litdata over S3: the objects packed by its own writer, streamed through its DataLoader with an empty local cache in every pass."""

import os
import tempfile
from importlib.metadata import version

import litdata.streaming.downloader as client
from litdata import StreamingDataLoader, StreamingDataset

from packing import packed_s3
from protocol import DUMMY_KEYS, Task, main, serve

# Its faster client speaks HTTPS only; boto3 is its other one.
client._OBSTORE_AVAILABLE = False


def run(task: Task) -> None:
    endpoint, remote = packed_s3(task)
    os.environ.update(DUMMY_KEYS)
    options = {"endpoint_url": endpoint}

    def loader():
        with tempfile.TemporaryDirectory(prefix="fuelrail-litdata-", ignore_cleanup_errors=True) as cache:
            samples = StreamingDataset(remote, cache_dir=cache, shuffle=True, seed=task.seed + task.passes, storage_options=options)
            yield from StreamingDataLoader(samples, batch_size=task.batch_size, num_workers=task.workers, collate_fn=list)

    settings = f"litdata {version('litdata')}, its own shards over S3 by boto3, cold local cache, {task.workers} workers"
    serve(task, loader, settings)


if __name__ == "__main__":
    main(run)
