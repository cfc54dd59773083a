"""litdata over S3: the objects packed by its own writer, streamed through its DataLoader with an empty local cache in every pass."""

import os
import shutil
import tempfile
from importlib.metadata import version
from urllib.parse import urlsplit

import litdata.streaming.downloader as client
from litdata import StreamingDataLoader, StreamingDataset

from packing import packed_address
from protocol import Task, main, serve


# Its faster client speaks HTTPS only; boto3 is its other one.
client._OBSTORE_AVAILABLE = False


def run(task: Task) -> None:
    endpoint, _, path = packed_address(task).partition("://")[2].partition("/")
    os.environ.update(AWS_ACCESS_KEY_ID="rival", AWS_SECRET_ACCESS_KEY="rival", AWS_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true")
    options = {"endpoint_url": f"{urlsplit(task.uri).scheme}://{endpoint}"}

    def loader():
        cache = tempfile.mkdtemp(prefix="fuelrail-litdata-")
        try:
            samples = StreamingDataset(f"s3://{path}", cache_dir=cache, shuffle=True, seed=task.seed + task.passes, storage_options=options)
            yield from StreamingDataLoader(samples, batch_size=task.batch_size, num_workers=task.workers, collate_fn=list)
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    settings = f"litdata {version('litdata')}, its own shards over S3 by boto3, cold local cache, {task.workers} workers"
    serve(task, loader, settings)


if __name__ == "__main__":
    main(run)
