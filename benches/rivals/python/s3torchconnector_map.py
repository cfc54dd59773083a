"""s3torchconnector's map-style data set (AWS CRT below) under a DataLoader, each object read whole."""

import os

import torch
from s3torchconnector import S3ClientConfig, S3MapDataset, S3ReaderConstructor
from s3torchconnector import __version__ as VERSION
from torch.utils.data import DataLoader

from protocol import Task, main, serve

# No credentials are needed, and none are to be looked for on the network.
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")


def run(task: Task) -> None:
    torch.set_num_threads(1)
    objects = S3MapDataset.from_objects(
        [task.s3_uri(item) for item in task.objects],
        region="us-east-1",
        endpoint=task.endpoint,
        transform=lambda reader: reader.read(),
        s3client_config=S3ClientConfig(force_path_style=True, unsigned=True),
        reader_constructor=S3ReaderConstructor.sequential(),
    )
    loader = DataLoader(
        objects,
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=list,
        generator=torch.Generator().manual_seed(task.seed),
    )
    settings = f"s3torchconnector {VERSION}, map-style, sequential reader, 8 MiB parts, {task.workers} workers"
    serve(task, lambda: loader, settings)


if __name__ == "__main__":
    main(run)
