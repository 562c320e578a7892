"""Sessions that were trimmed, exported and imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.consumers import append
from support.transfers import IDS, SKIP, compared, exported, imported

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError
from mongo_session_service.sessions import trim


async def fill(service: MongoSessionService) -> None:
    session = await service.create_session(**IDS, state={"k": 0})
    await append(service, session, 6)


async def test_files_hold_the_first_revision_of_a_log(
    service: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """The copy begins there too, is the same again, and catches up."""
    await fill(service)
    await service.trim_session(**IDS, keep_last=4)
    path = tmp_path / "all.jsonl"

    lines = (await exported(service, path)).splitlines()

    assert json.loads(lines[0])["version"] == 2
    (header,) = (json.loads(each) for each in lines if b'{"session"' in each)
    assert header["session"]["log_begins"] == 2
    assert header["session"]["initial_state"] == {"k": 0, "n": 1}
    assert json.loads(lines[-1])["end"]["events"] == 4
    assert (await imported(path, copy)).new == 1
    assert await compared(service, copy) == []
    session = await service.get_session(**IDS)
    assert session is not None
    await append(service, session, 2)
    await exported(service, path)
    again = await imported(path, copy)
    assert (again.caught_up, again.events) == (1, 2)
    assert await compared(service, copy) == []


async def test_a_log_that_begins_elsewhere_is_another(
    service: MongoSessionService,
    copy: MongoSessionService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which side was trimmed, and how far, does not matter."""
    await fill(service)
    path = tmp_path / "all.jsonl"
    await exported(service, path)
    await imported(path, copy)
    await service.trim_session(**IDS, keep_last=4)
    await exported(service, path)

    with pytest.raises(ConflictError, match="log_begins differs"):
        await imported(path, copy)
    assert (await imported(path, copy, SKIP)).skipped == 1

    async def interrupted(*_: Any) -> int:
        return 0

    monkeypatch.setattr(trim, "remove_trimmed", interrupted)
    await copy.trim_session(**IDS, keep_last=1)
    assert any("log_begins differs" in each for each in await compared(service, copy))
    assert any("log_begins differs" in each for each in await compared(copy, service))
