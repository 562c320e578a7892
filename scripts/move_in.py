#!/usr/bin/env python3
"""Move sessions of ADK's SQL service to MongoDB, and prove that none was lost.

Run it while the old store is in use, and once more after the switch: the second run
takes what came in between. Exits with 1 if anything is missing or different.
"""

from __future__ import annotations

import argparse
import asyncio
import sys


async def main(sql_url: str, mongodb_uri: str) -> int:
    """Move everything, then compare everything."""
    from mongo_session_service import MongoSessionService
    from mongo_session_service.transfer import SqlSource, StoreSource, move, verify

    async with (
        MongoSessionService(mongodb_uri) as service,
        SqlSource(sql_url) as source,
        StoreSource(service) as target,
    ):
        moved = await move(source, service)
        print(f"{moved.sessions} sessions are there; {moved.events} events are new.")
        verified = await verify(source, target, on_difference=print)
        print(f"{verified.events} events compared; {verified.differences} differences.")
        return 0 if verified.is_equal else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sql_url", help="as for ADK's DatabaseSessionService")
    parser.add_argument("mongodb_uri", help="with the name of the database in it")
    sys.exit(asyncio.run(main(**vars(parser.parse_args()))))
