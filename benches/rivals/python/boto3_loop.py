"""boto3 in a plain loop on one thread: the least a Python program can do."""

from protocol import Task, batched, main, serve
from s3_client import VERSION, client, get


def run(task: Task) -> None:
    s3 = client(task)
    batches = lambda: batched((get(s3, task, item.key) for item in task.shuffled()), task.batch_size)
    serve(task, batches, f"boto3 {VERSION}, one thread, unsigned, path style")


if __name__ == "__main__":
    main(run)
