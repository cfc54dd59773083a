"""PyTorch's DataLoader over a map-style data set whose `__getitem__` is a boto3 GET: what most training code does."""

import torch
from torch.utils.data import DataLoader, Dataset

from protocol import Task, main, serve
from s3_client import VERSION, client, get


class Bucket(Dataset):
    """Opens its client in the process that uses it: neither sockets nor TLS state survive a fork."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.s3 = None

    def __len__(self) -> int:
        return len(self.task.objects)

    def __getitem__(self, index: int) -> bytes:
        if self.s3 is None:
            self.s3 = client(self.task)
        return get(self.s3, self.task, self.task.objects[index].key)


def run(task: Task) -> None:
    torch.set_num_threads(1)
    loader = DataLoader(
        Bucket(task),
        batch_size=task.batch_size,
        shuffle=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=list,
        generator=torch.Generator().manual_seed(task.seed),
    )
    settings = f"torch {torch.__version__} DataLoader, {task.workers} workers kept alive, boto3 {VERSION} unsigned"
    serve(task, lambda: loader, settings)


if __name__ == "__main__":
    main(run)
