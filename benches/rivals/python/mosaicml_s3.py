"""mosaicml-streaming over S3: the objects packed into MDS shards, downloaded to an empty local cache in every pass.

Since version 0.13 it speaks no plain HTTP any more; over S3 it downloads whole shards with boto3.
"""

import os
import shutil
import tempfile
from importlib.metadata import version
from urllib.parse import urlsplit

from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from packing import packed_address
from protocol import Task, main, serve


class Payload(StreamingDataset):
    """Hands over the bytes alone."""

    def __getitem__(self, index):
        return super().__getitem__(index)["bin"]


def run(task: Task) -> None:
    endpoint, _, path = packed_address(task).partition("://")[2].partition("/")
    os.environ.update(
        S3_ENDPOINT_URL=f"{urlsplit(task.uri).scheme}://{endpoint}",
        AWS_ACCESS_KEY_ID="rival",
        AWS_SECRET_ACCESS_KEY="rival",
        AWS_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    remote = f"s3://{path}"

    def loader():
        clean_stale_shared_memory()
        cache = tempfile.mkdtemp(prefix="fuelrail-mosaicml-")
        try:
            samples = Payload(
                remote=remote,
                local=cache,
                shuffle=True,
                shuffle_seed=task.seed + task.passes,
                batch_size=task.batch_size,
                num_canonical_nodes=1,
            )
            yield from DataLoader(samples, batch_size=task.batch_size, num_workers=task.workers, collate_fn=list)
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    settings = f"mosaicml-streaming {version('mosaicml-streaming')}, MDS shards over S3, cold local cache, {task.workers} workers"
    serve(task, loader, settings)


if __name__ == "__main__":
    main(run)
