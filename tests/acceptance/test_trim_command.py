"""``mongo-session-service trim``."""

from __future__ import annotations

import json

from google.adk.events import Event
from google.adk.platform import time
from support.cli_runner import call

from mongo_session_service import MongoSessionService

DAY = 86_400.0


async def test_trim_removes_by_age_from_all_sessions_of_an_app(
    at: tuple[str, ...], service: MongoSessionService
) -> None:
    """Old events go from each session of the app; it says how many."""
    now = time.get_time()
    for app, user, ages in (
        ("app", "ada", (3, 2, 0)),
        ("app", "bob", (0, 3)),
        ("app", "eve", ()),
        ("other", "ada", (3, 3)),
    ):
        session = await service.create_session(
            app_name=app, user_id=user, session_id="s"
        )
        for age in ages:
            event = Event(author="x", timestamp=now - age * DAY)
            await service.append_event(session, event)

    trimmed = call("trim", "app", "--older-than", "36h", *at)
    again = call("trim", "app", "--older-than", "1d", "--json", *at)
    shown = call("show", "app", "ada", "s", *at)

    assert (trimmed.returncode, trimmed.stdout) == (0, "")
    assert trimmed.stderr.startswith("Removed 2 events from 1 of 3 sessions in ")
    assert json.loads(again.stdout) == {"sessions": 3, "trimmed": 0, "events": 0}
    assert "events   1 (the first 2 trimmed)\n" in shown.stdout
    counts = {
        (app, user): len([each async for each in events])
        for app, user in (("app", "ada"), ("app", "bob"), ("other", "ada"))
        for events in [service.iter_events(app_name=app, user_id=user, session_id="s")]
    }
    assert counts == {("app", "ada"): 1, ("app", "bob"): 2, ("other", "ada"): 2}
