"""A worker that handles every event of an app at least once, across restarts.

Start it, run quickstart.py in a second terminal, and stop it by Ctrl-C or SIGTERM. When
it is started again, it continues after the last event that it has handled.
"""

import asyncio
import os
import signal

from mongo_session_service import Change, Consumer, MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")


async def handle(change: Change) -> None:
    """Handle one change; it is handled again if this raises, or if the worker dies."""
    if change.kind == "appended":
        print(f"handled {change.session_id} {change.revision}: {change.state_delta}")


async def main() -> None:
    async with (
        MongoSessionService(URI) as service,
        service.consumer("worker", app_name="my_app") as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(close_on_signal(consumer))
        await consumer.run(handle)
        async for letter in consumer.dead_letters():  # what failed in every attempt
            print(f"failed: {letter.change.session_id}: {letter.error}")


async def close_on_signal(consumer: Consumer) -> None:
    """Let the worker finish what it is handling, and end."""
    signalled = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, signalled.set)
    await signalled.wait()
    await consumer.close()


if __name__ == "__main__":
    asyncio.run(main())
