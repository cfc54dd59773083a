"""obstore (object_store's Rust core): GETs of a window of objects at a time under asyncio, as its manual shows."""

import asyncio
from importlib.metadata import version

from obstore.store import S3Store

from protocol import Task, batched, main, serve

IN_FLIGHT = 64


def run(task: Task) -> None:
    store = S3Store(
        task.bucket,
        prefix=task.prefix or None,
        endpoint=task.endpoint,
        region="us-east-1",
        skip_signature=True,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    # Results are held until a window is whole.
    window = task.window(IN_FLIGHT)
    loop = asyncio.new_event_loop()

    async def get(item):
        return await (await store.get_async(item.key)).bytes_async()

    async def together(items):
        return await asyncio.gather(*map(get, items))

    def samples():
        for items in batched(task.shuffled(), window):
            yield from loop.run_until_complete(together(items))

    settings = f"obstore {version('obstore')}, {window} GETs at a time under asyncio, unsigned"
    serve(task, lambda: batched(samples(), task.batch_size), settings)


if __name__ == "__main__":
    main(run)
