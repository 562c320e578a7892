"""A redaction reaches all that the service has copied or repeated, whatever is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models import LlmRequest, LlmResponse
from google.genai import types
from pymongo import MongoClient
from support.conversations import (
    OWNER,
    ROOT,
    EchoModel,
    ask,
    runner_of,
    shown,
    texts,
)
from support.encryption_hooks import CANARY
from support.one_session import IDS
from support.raw_search import traces_of
from support.transfers import exported, imported
from support.waiting import say
from typing_extensions import override

from mongo_session_service import MongoSessionService, StorageUnavailableError
from mongo_session_service.sessions import fork, redaction
from mongo_session_service.storage.kernel import Storage

ALL = {"state": True, "forks": True}
NAMED = {"displayName": f"about {CANARY}"}


class Discreet(EchoModel):
    """Answers nothing of what it was asked."""

    @override
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the answer."""
        yield LlmResponse(content=types.ModelContent("Well."))


async def tell(service: MongoSessionService, session_id: str = ROOT) -> Event:
    """Append the canary, in the text and under a key of state, and something after."""
    ids = OWNER | {"session_id": session_id}
    event = say(CANARY, "secret")
    event.actions.state_delta = {"own": CANARY, "__session_metadata__": NAMED}
    await service.append(**ids, event=event)
    await service.append(**ids, event=say("later", "later"))
    return event


@pytest.mark.parametrize("fork_first", [True, False])
async def test_a_trimmed_copy_forgets_values_by_what_they_are(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    fork_first: bool,  # noqa: FBT001
) -> None:
    """Its state, initial state and title had them of an event that is gone there."""
    await service.create_session(**IDS)
    event = await tell(service)
    await service.fork_session(**IDS, new_session_id="f")
    copy = OWNER | {"session_id": "f"}
    if fork_first:
        await service.fork_session(**copy, new_session_id="f2")
    own = Event(author="x", actions=EventActions(state_delta={"other": "mine"}))
    await service.append(**copy, event=own)
    await service.trim_session(**copy, keep_last=1)
    if not fork_first:
        await service.fork_session(**copy, new_session_id="f2")

    await service.redact_events(**IDS, event_ids=[event.id], **ALL)

    assert traces_of(CANARY, admin, database) == []
    found = await service.get_session(**copy)
    assert found is not None
    assert (found.state["own"], found.state["other"]) == ("[redacted]", "mine")


async def test_a_value_that_a_trimmed_copy_has_set_itself_stays(
    service: MongoSessionService,
) -> None:
    """An event that is left there has set it again, to the same."""
    await service.create_session(**IDS)
    event = await tell(service)
    copy = OWNER | {"session_id": "f"}
    await service.fork_session(**IDS, new_session_id="f")
    own = Event(author="x", actions=EventActions(state_delta={"own": CANARY}))
    await service.append(**copy, event=own)
    await service.trim_session(**copy, keep_last=1)

    await service.redact_events(**IDS, event_ids=[event.id], **ALL)

    found = await service.get_session(**copy)
    assert found is not None
    assert found.state["own"] == CANARY


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("wanted", ["first", "again", "last"])
async def test_a_message_that_was_asked_again_is_redacted_in_all_versions(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    tmp_path: Any,
    wanted: str,
    trims: bool,  # noqa: FBT001
) -> None:
    """Whichever is named, also after a version between them is gone, and an import."""
    how: dict[str, Any] = {"runner": runner_of(service, Discreet())}
    await service.create_session(**IDS)
    await ask(service, "hello", **how)
    _, first = await ask(service, CANARY, **how, state_delta={"own": CANARY})
    edited, _ = await ask(service, "other", **how, instead_of=first)
    second, again = await ask(service, None, **how, instead_of=first)
    third, last = await ask(service, None, **how, session_id=second, instead_of=again)
    versions = {"first": (ROOT, first), "again": (second, again), "last": (third, last)}
    if wanted != "again":
        await service.delete_session(**OWNER, session_id=second)
        del versions["again"]
    await exported(service, tmp_path / "all.jsonl")
    await service.delete_user(**OWNER)
    await imported(tmp_path / "all.jsonl", service)
    session_id, invocation = versions.pop(wanted)
    for other, _ in versions.values() if trims else ():
        await service.trim_session(**OWNER, session_id=other, before_revision=5)

    key = OWNER | {"session_id": session_id}
    await service.redact_events(**key, invocation_id=invocation, **ALL)

    assert traces_of(CANARY, admin, database) == []
    assert await texts(service, edited) == ["hello", "Well.", "other", "Well."]


@pytest.mark.parametrize("shows_original", [False, True])
@pytest.mark.parametrize("version", ["root", "copy", "apart"])
async def test_a_title_that_an_event_set_goes_from_all_versions(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    shows_original: bool,  # noqa: FBT001
    version: str,
) -> None:
    """Whichever is shown, and whether the event is in it or was before the edit."""
    how: dict[str, Any] = {"runner": runner_of(service, Discreet())}
    await service.create_session(**IDS)
    _, first = await ask(service, "hello", **how)
    event = await tell(service)
    _, last = await ask(service, "more", **how)
    before = first if version == "apart" else last
    edited, _ = await ask(service, "else", **how, instead_of=before)
    if shows_original:
        await service.show_branch(**IDS)
    key = OWNER | {"session_id": edited if version == "copy" else ROOT}

    await service.redact_events(**key, event_ids=[event.id], **ALL)

    assert traces_of(CANARY, admin, database) == []


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_message_is_not_asked_again_once_it_is_redacted(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
    is_copied: bool,  # noqa: FBT001
) -> None:
    """Its content was read before; the version fails, and the original is shown."""
    how: dict[str, Any] = {"runner": runner_of(service, Discreet())}
    await service.create_session(**IDS)
    _, first = await ask(service, CANARY, **how, state_delta={"own": CANARY})
    copy = fork.Fork.copy

    async def redacted_meanwhile(making: fork.Fork) -> Any:
        copied = await copy(making) if is_copied else None
        await service.redact_events(**IDS, invocation_id=first, **ALL)
        return copied or await copy(making)

    monkeypatch.setattr(fork.Fork, "copy", redacted_meanwhile)
    with pytest.raises((SessionNotFoundError, StorageUnavailableError)):
        await ask(service, None, **how, instead_of=first)

    assert traces_of(CANARY, admin, database) == []
    assert await shown(service) == [(ROOT, 1)]


async def test_copies_are_found_to_any_depth(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forks of forks, of which none names all that came before it."""
    monkeypatch.setattr(fork, "MAX_ORIGINS", 1)
    await service.create_session(**IDS)
    event = await tell(service)
    for number in range(6):
        source = OWNER | {"session_id": f"f{number - 1}" if number else ROOT}
        await service.fork_session(**source, new_session_id=f"f{number}")
    await service.delete_session(**OWNER, session_id="f2")

    assert await service.redact_events(**IDS, event_ids=[event.id], **ALL) == 6

    assert traces_of(CANARY, admin, database) == []


@pytest.mark.parametrize("gone", [ROOT, "f", "f2"])
@pytest.mark.parametrize("moment", ["find_part", "_read_deltas", "lock_session"])
async def test_what_is_deleted_during_a_redaction_is_passed_over(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    gone: str,
) -> None:
    """Its copies are not, whichever goes, and whenever."""
    await service.create_session(**IDS)
    event = await tell(service)
    await service.fork_session(**IDS, new_session_id="f")
    await service.fork_session(**OWNER, session_id="f", new_session_id="f2")
    done = getattr(redaction, moment)

    async def done_late(*args: Any, **options: Any) -> Any:
        if moment != "find_part":
            await service.delete_session(**OWNER, session_id=gone)
        result = await done(*args, **options)
        await service.delete_session(**OWNER, session_id=gone)
        return result

    monkeypatch.setattr(redaction, moment, done_late)

    await service.redact_events(**IDS, event_ids=[event.id], **ALL)

    assert traces_of(CANARY, admin, database) == []


@pytest.mark.parametrize("action", ["redact", "trim"])
async def test_a_session_that_others_append_to_all_the_time(
    service: MongoSessionService,
    second: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    """What they append while the log is read is counted in, and held up by nothing."""
    await service.create_session(**IDS)
    event = await tell(service)
    scan, late = Storage.scan, 0

    async def scan_late(
        storage: Storage, query: Any, **options: Any
    ) -> AsyncGenerator[Any]:
        nonlocal late
        async for page in scan(storage, query, **options):
            yield page
            if query.collection == "events" and options.get("as_of") is None:
                late += 1
                actions = EventActions(state_delta={"own": late})
                await second.append(**IDS, event=Event(author="x", actions=actions))

    monkeypatch.setattr(Storage, "scan", scan_late)
    if action == "redact":
        assert await service.redact_events(**IDS, event_ids=[event.id], **ALL) == 1
    else:
        assert await service.trim_session(**IDS, keep_last=1) == 1
    monkeypatch.undo()

    found = await service.get_session(**IDS)
    assert found is not None
    assert late > 0
    assert found.state["own"] == late
    assert len(found.events) == late + (2 if action == "redact" else 1)
    past = await service.get_session_at(**IDS, revision=2)
    assert past is not None
    assert past.state["own"] == ("[redacted]" if action == "redact" else CANARY)
