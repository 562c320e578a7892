"""The artifacts that a fork's history names, copied as the page about forks does."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from google.adk.artifacts import (
    BaseArtifactService,
    FileArtifactService,
    InMemoryArtifactService,
)
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai import types
from support.doc_blocks import blocks_of

from mongo_session_service import MongoSessionService, SessionKey

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "forks-and-history.md"
ADA = {"app_name": "app", "user_id": "ada"}


def copy_artifacts() -> Any:
    """The function on the page."""
    (text,) = (it.text for it in blocks_of(PAGE) if "def copy_artifacts" in it.text)
    kinds = (ast.Import, ast.ImportFrom, ast.AsyncFunctionDef)
    body = [it for it in ast.parse(text).body if isinstance(it, kinds)]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(body, []), str(PAGE), "exec"), names)  # noqa: S102
    return names["copy_artifacts"]


@pytest.mark.parametrize("kind", ["in memory", "in files"])
async def test_a_fork_gets_the_artifacts_that_its_events_name(
    service: MongoSessionService, kind: str, tmp_path: Path
) -> None:
    """In the versions up to these; later ones, others, and the user's are left."""
    store: BaseArtifactService = (
        InMemoryArtifactService()
        if kind == "in memory"
        else FileArtifactService(tmp_path)
    )
    session = await service.create_session(**ADA, session_id="s")
    for number, name in enumerate(["plan", "plan", "user:face", "plan", "late"]):
        part = types.Part.from_bytes(data=b"%d" % number, mime_type="text/plain")
        where = {**ADA, "session_id": "s", "filename": name}
        version = await store.save_artifact(**where, artifact=part)
        actions = EventActions(artifact_delta={name: version})
        await service.append_event(session, Event(author="x", actions=actions))

    fork = await service.fork_session(**ADA, session_id="s", at_revision=3)
    await copy_artifacts()(store, SessionKey(**ADA, session_id="s"), fork)

    async def loaded(of: Session, name: str, version: int | None = None) -> Any:
        where = {**ADA, "session_id": of.id, "filename": name, "version": version}
        found = await store.load_artifact(**where)  # type: ignore[arg-type]
        return found and found.inline_data and found.inline_data.data

    shown = [await loaded(fork, "plan", each) for each in (0, 1, None)]
    assert shown == [b"0", b"1", b"1"]
    assert await loaded(fork, "user:face") == b"2"
    assert await loaded(fork, "late") is None
    assert await loaded(session, "plan") == b"3"
