"""Commands in processes forked from one that has imported ADK: to be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

from pymongo import MongoClient

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["mongo_session_service.cli.app", "mongo_session_service.transfer"]
)


def _run(arguments: tuple[str, ...]) -> None:
    """Run a command, silently."""
    from mongo_session_service.cli.app import main  # noqa: PLC0415  not in the parent

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    main(arguments)


def killed(
    *arguments: str,
    admin: MongoClient[Any],
    database: str,
    collection: str,
    changes: int = 1,
    kind: str = "insert",
) -> None:
    """Run a command, and kill it as soon as a collection has had so many changes."""
    changed = {"$match": {"ns.coll": collection, "operationType": kind}}
    with admin[database].watch([changed]) as stream:
        process = _PROCESSES.Process(target=_run, args=(arguments,))
        process.start()
        seen = 0
        while seen < changes and process.is_alive():
            seen += stream.try_next() is not None
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    # As MongoDB does with the transactions of the dead within a minute.
    admin.admin.command("killAllSessions", [])
