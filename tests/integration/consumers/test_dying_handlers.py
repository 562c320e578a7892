"""A change whose handler kills its process becomes a dead letter, as one that fails."""

from __future__ import annotations

import signal
from multiprocessing.connection import wait

import pytest
from pymongo import MongoClient
from support.consumers import append, create
from support.dying_process import handle_until_killed
from support.forks import FORKS
from support.patience import PATIENCE

from mongo_session_service import MongoSessionService

POISON = 3
"""The revision of the event whose handler does not survive."""


@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, -signal.SIGKILL),
        ({"transactional": True}, 137),
        ({"concurrency": 4}, 137),
    ],
    ids=str,
)
async def test_what_kills_its_process_becomes_a_dead_letter(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    options: dict[str, object],
    code: int,
) -> None:
    """After so many beginnings; what comes behind it is handled, and once."""
    await append(service, await create(service), 5)
    codes = []
    begins, sending = FORKS.Pipe(duplex=False)
    while not codes or codes[-1]:
        args = [mongodb_uri, database, POISON, options, sending if code < 0 else None]
        process = FORKS.Process(target=handle_until_killed, args=args)
        process.start()
        if begins in wait([begins, process.sentinel], PATIENCE):
            begins.recv()
            process.kill()
        process.join(PATIENCE)
        codes.append(process.exitcode)
        assert len(codes) <= 4

    assert codes == [code] * (len(codes) - 1) + [0]
    begun = [each["revision"] for each in admin[database].begun.find()]
    assert begun.count(POISON) in {2, 3}  # of the first nobody knows which it was
    assert {1, 2, 4, 5} <= {*begun}
    (letter,) = [each async for each in service.consumer("c").dead_letters()]
    assert (letter.error, letter.attempts) == ("ProcessDiedError", 2)
    assert letter.id["revision"] == POISON
