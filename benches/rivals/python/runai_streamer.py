"""NVIDIA's runai-model-streamer: many objects requested at once, ranges handed over as they land in its ring of buffers."""

import os
from importlib.metadata import version

from protocol import Task, batched, main, serve

# Objects of one submission: it plans its ring over all of them, and one of a whole small-object set takes minutes.
SUBMISSION = 512


def run(task: Task) -> None:
    os.environ.update(
        AWS_ENDPOINT_URL=task.endpoint,
        AWS_ACCESS_KEY_ID="rival",
        AWS_SECRET_ACCESS_KEY="rival",
        AWS_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
        RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING="0",
    )
    from runai_model_streamer import FileChunks, FileStreamer  # reads the environment when it is imported

    def samples(streamer):
        for part in batched(task.shuffled(), SUBMISSION):
            requests = [FileChunks(number, task.s3_uri(item), [0], [item.size]) for number, item in enumerate(part)]
            streamer.stream_files(requests, memory_limit=task.arena)
            for _, _, tensor in streamer.get_chunks():
                yield tensor.numpy()

    with FileStreamer() as streamer:
        settings = f"runai-model-streamer {version('runai-model-streamer')}, {task.arena >> 20} MiB of buffers, dummy key"
        serve(task, lambda: batched(samples(streamer), task.batch_size), settings)


if __name__ == "__main__":
    main(run)
