"""s3dlio's `get_many`: a Rust core fetches a window of objects at a time, 64 in flight as it does by default."""

import os
from importlib.metadata import version

from protocol import DUMMY_KEYS, Task, batched, main, serve

IN_FLIGHT = 64


def run(task: Task) -> None:
    os.environ.update(DUMMY_KEYS, AWS_ENDPOINT_URL=task.endpoint)
    import s3dlio  # reads the environment when it is imported

    # Results are held until the call returns.
    window = task.window(IN_FLIGHT)

    def samples():
        for uris in batched(map(task.s3_uri, task.shuffled()), window):
            for _, content in s3dlio.get_many(uris, max_in_flight=IN_FLIGHT):
                yield content

    settings = f"s3dlio {version('s3dlio')}, get_many of {window}, {IN_FLIGHT} in flight, signed with a dummy key"
    serve(task, lambda: batched(samples(), task.batch_size), settings)


if __name__ == "__main__":
    main(run)
