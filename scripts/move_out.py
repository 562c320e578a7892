#!/usr/bin/env python3
"""Leave: write all sessions to a file, and hand them to another ADK service.

The file is this package's documented JSON Lines. The other service is ADK's own
SqliteSessionService here; any BaseSessionService would do.
"""

from __future__ import annotations

import argparse
import asyncio


async def main(mongodb_uri: str, path: str, sqlite_path: str) -> None:
    """Export everything, then hand everything over, and compare."""
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    from mongo_session_service import MongoSessionService
    from mongo_session_service.transfer import (
        EVERYTHING,
        ServiceSource,
        StoreSource,
        export,
        hand_over,
        verify,
    )

    async with (
        MongoSessionService(mongodb_uri) as service,
        StoreSource(service) as source,
    ):
        exported = await export(source, path)
        print(f"{path}: {exported.sessions} sessions, {exported.events} events.")
        other = SqliteSessionService(sqlite_path)
        given = await hand_over(source, other)
        print(f"{sqlite_path}: {given.sessions} sessions, {given.events} events.")
        apps = {key.app_name async for key in source.keys(EVERYTHING)}
        # A session without events differs in its time, which only its service sets.
        await verify(source, ServiceSource(other, apps), on_difference=print)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mongodb_uri", help="with the name of the database in it")
    parser.add_argument("path", help="where to write to, such as sessions.jsonl.gz")
    parser.add_argument("sqlite_path", help="the other service's file")
    asyncio.run(main(**vars(parser.parse_args())))
