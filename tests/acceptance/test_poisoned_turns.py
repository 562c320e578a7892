"""A turn that kills every process which runs it, among others that do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.forks import FORKS
from support.function_calls import open_calls
from support.poisoned_turns import APP, DEAD, POISON, USER, begin, recover
from support.scripted_model import texts_of

from mongo_session_service import MongoSessionService

INNOCENT = [f"s{number}" for number in range(11)]


def run(target: Any, *arguments: Any) -> int | None:
    """Run a process; its exit code."""
    process = FORKS.Process(target=target, args=arguments)
    process.start()
    process.join(120)
    code: int | None = process.exitcode
    process.kill()
    return code


@pytest.mark.release
@pytest.mark.parametrize("place", [0, 5, 11])
async def test_a_poisonous_turn_takes_no_other_with_it(
    service: MongoSessionService, mongodb_uri: str, database: str, place: int
) -> None:
    """It kills two more processes at most; the others are answered, it is given up."""
    names = [
        f"{'' if number < place else 'z'}{it}" for number, it in enumerate(INNOCENT)
    ]
    sessions = [*names[:place], POISON, *names[place:]]
    code = await asyncio.to_thread(run, begin, mongodb_uri, database, sessions)
    assert code == DEAD
    codes = []
    while code == DEAD:
        code = await asyncio.to_thread(run, recover, mongodb_uri, database)
        codes.append(code)
    assert codes in ([DEAD, 0], [DEAD, DEAD, 0])

    for name in sessions:
        session = await service.get_session(app_name=APP, user_id=USER, session_id=name)
        assert session is not None
        texts = [text for each in session.events for text in texts_of(each.content)]
        # ADK answers again if the process has died just after the first time.
        expected = [POISON] if name == POISON else ["wait", "answered"]
        assert list(dict.fromkeys(texts)) == expected
        assert not open_calls(session.events)
    (turn,) = await service.find_turns(status="failed")
    assert (turn.session_id, turn.reason) == (POISON, "its process died")
