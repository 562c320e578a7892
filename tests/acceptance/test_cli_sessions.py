"""The commands ``sessions`` and ``show``: what is stored, on a terminal or as JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.genai import types
from pymongo import MongoClient
from support.cli_runner import call
from support.conversations import OWNER, ROOT, ask, talk
from support.encryption_hooks import CANARY, KEY, SEALED, STATE, canary_event

from mongo_session_service import MongoSessionService

ADA = {"app_name": "trips", "user_id": "ada"}


async def test_without_an_app_the_apps_are_counted(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """Each app has a row, or a line of JSON, without sessions that have expired."""
    for user in ("ada", "ada", "bob"):
        await service.create_session(app_name="trips", user_id=user)
    await service.create_session(app_name="shop", user_id="eve")
    gone = await service.create_session(app_name="old", user_id="eve", session_id="s")
    await service.update_session(
        app_name="old", user_id="eve", session_id=gone.id, ttl=1e-3
    )

    table, lines = call("sessions", *at), call("sessions", "--json", *at)

    assert [line.rstrip() for line in table.stdout.splitlines()[1:]] == [
        "shop       1         1",
        "trips      2         3",
    ]
    assert [json.loads(line) for line in lines.stdout.splitlines()] == [
        {"app_name": "shop", "users": 1, "sessions": 1},
        {"app_name": "trips", "users": 2, "sessions": 3},
    ]


async def test_an_unknown_app_is_answered_with_the_known_ones(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """Who misspells an app reads which there are; with --json on stderr too."""
    await service.create_session(**ADA)
    empty = call("sessions", "--app", "x", "--prefix", "no_", *at)
    wrong = ("sessions", "--app", "Trips", *at)
    shown = [call(*wrong), call(*wrong, "--json")]
    filtered = call("sessions", "--app", "trips", "--user", "bob", *at)

    assert empty.stderr.startswith("No session of app x is stored in database ")
    for done in shown:
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.startswith("No session of app Trips is stored in database ")
        assert done.stderr.endswith("\nApps with sessions: trips.\n")
    assert filtered.stderr.startswith("No such session of app trips in database ")


async def test_a_user_is_found_in_every_app(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """Each app has a row that has sessions of theirs, or state alone."""
    await service.create_session(**ADA, state={"user:name": "Ada"})
    await service.create_session(app_name="trips", user_id="bob")
    await service.create_session(app_name="bank", user_id="bob")
    shop = {"app_name": "shop", "user_id": "ada", "session_id": "s"}
    await service.create_session(**shop, state={"user:name": "Ada"})
    await service.delete_session(**shop)

    lines = call("sessions", "--user", "ada", "--json", *at)
    nobody = call("sessions", "--user", "adda", *at)

    assert [json.loads(line) for line in lines.stdout.splitlines()] == [
        {"app_name": "shop", "users": 1, "sessions": 0},
        {"app_name": "trips", "users": 1, "sessions": 1},
    ]
    assert nobody.stderr.startswith("There are no apps of user adda in database ")


async def test_sessions_are_found_by_every_filter(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """User, title, labels and values of state select; the order and number are free."""
    state = {"city": "Turin", "days": 3}
    await service.create_session(
        **ADA, session_id="a", title="Trip", labels={"stage": "test"}, state=state
    )
    await service.create_session(**ADA, session_id="b", labels={"stage": "a=b"})
    await service.create_session(app_name="trips", user_id="bob", session_id="c")

    def found(*options: str) -> list[str]:
        done = call("sessions", "--app", "trips", "--json", *options, *at)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["session_id"] for line in done.stdout.splitlines()]

    assert found() == ["c", "b", "a"]
    assert found("--oldest-first") == ["a", "b", "c"]
    session = await service.get_session(**ADA, session_id="a")
    assert session is not None
    await service.append_event(session, Event(author="user"))
    of_ada = ("--user", "ada", "--order", "update_time")
    assert found(*of_ada) == ["a", "b"]
    assert found(*of_ada, "--oldest-first") == ["b", "a"]
    assert found("--user", "ada") == ["b", "a"]
    assert found("--title", "Trip") == ["a"]
    assert found("--title-contains", "RI") == ["a"]
    assert found("--title-contains", ".*") == []
    assert found("--label", "stage=a=b") == ["b"]
    assert found("--where", 'city="Turin"', "--where", "days=3") == ["a"]
    assert found("--where", 'days="3"') == []
    assert found("--limit", "2") == ["c", "b"]
    assert found("--limit", "0") == ["c", "b", "a"]


async def test_a_list_of_sessions_is_safe_to_read(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """Control characters are escaped, state is left out, and more is announced."""
    for number in range(2):
        await service.create_session(
            **ADA,
            title=f"\x1b[31mTrip {number}",
            labels={"stage": "te\u202est"},
            state={"city": "a very secret city"},
        )

    table = call("sessions", "--app", "trips", "--limit", "1", *at)
    line = call("sessions", "--app", "trips", "--limit", "1", "--json", *at)

    assert r"\x1b[31mTrip 1  stage=te\u202est" in table.stdout
    assert "There are more: --limit 2, or 0 for all." in table.stderr
    assert "\x1b" not in table.stdout + line.stdout
    assert "state" not in json.loads(line.stdout)


async def test_versions_of_a_conversation_are_counted(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """Who looks at one version learns that there are others, which a list has too."""
    (first,) = await talk(service, "Turin?", title="Trip")
    await ask(service, "Lisbon?", instead_of=first)
    named = (OWNER["app_name"], OWNER["user_id"], ROOT)

    listed = call("sessions", "--app", OWNER["app_name"], *at).stdout
    text = call("show", *named, *at).stdout
    lines = call("show", *named, "--json", *at).stdout
    erasing = call("erase", *named, "--dry-run", *at).stderr

    assert ", but not 1 other version of its conversation" in erasing
    assert listed.count("Trip  2 versions") == 2
    assert "versions 2\n" in text
    assert json.loads(lines.splitlines()[0])["branches"] == 2


def model_says(*parts: types.Part, **fields: object) -> Event:
    return Event(author="planner", content=types.ModelContent([*parts]), **fields)


@pytest.fixture
async def conversation(service: MongoSessionService) -> tuple[str, ...]:
    """A session's ids; in it a user asks, a tool is called, and an agent answers."""
    session = await service.create_session(
        **ADA,
        session_id="turin",
        title="Trip to Turin",
        labels={"stage": "test"},
        ttl=7 * 86400,
        state={"app:motto": "go", "user:name": "Ada", "cart": ["a"]},
    )
    asked = types.UserContent("Is it warm?\n  In \x1b[2JTurin, I mean.")
    call_ = types.Part.from_function_call(name="get_weather", args={"city": "Turin"})
    answer = types.Part.from_function_response(
        name="get_weather", response={"result": "warm " * 1000}
    )
    for event in (
        Event(author="user", invocation_id="i1", content=asked),
        model_says(call_, invocation_id="i1"),
        model_says(
            answer,
            invocation_id="i1",
            actions=EventActions(state_delta={"user:city": "Turin"}),
        ),
        model_says(types.Part(text="Yes."), invocation_id="i1", error_code="SAFETY"),
    ):
        await service.append_event(session, event)
    return "trips", "ada", "turin"


async def test_a_session_reads_as_a_conversation(
    at: tuple[str, ...], service: MongoSessionService, conversation: tuple[str, ...]
) -> None:
    """Details come first, then who said and did what, then the state by scope."""
    session = await service.get_session(**ADA, session_id="turin")
    assert session is not None
    rewind = EventActions(rewind_before_invocation_id="i1")
    await service.append_event(session, Event(author="user", actions=rewind))

    shown = call("show", *conversation, *at).stdout
    plain = [line.rstrip() for line in shown.splitlines()]

    assert plain[0] == "Trip to Turin"
    assert "labels   stage=test" in plain
    assert "(7 days, renewed by each event)" in shown
    assert "\x1b" not in shown
    asked = plain.index("    Is it warm?")
    assert plain[asked - 1].startswith("r1 ")
    assert plain[asked - 1].endswith("  user")
    assert plain[asked + 1] == r"      In \x1b[2JTurin, I mean."
    assert '    get_weather(city="Turin")' in plain
    assert " characters; --json prints all)" in shown
    assert len(shown) < 3000
    assert "    error SAFETY" in plain
    assert "    rewinds to before invocation i1" in plain
    state = plain.index("State of the session")
    name = '    __session_metadata__ = {"displayName": "Trip to Turin"}'
    assert plain[state:] == [
        *("State of the session", name, '    cart = ["a"]', ""),
        *("State of user ada", '    user:city = "Turin"', '    user:name = "Ada"', ""),
        *("State of app trips", '    app:motto = "go"'),
    ]


def test_only_the_latest_events_are_shown_if_so_wanted(
    at: tuple[str, ...], conversation: tuple[str, ...]
) -> None:
    """With --events only so many are, in text and JSON; what is left out is counted."""
    one = call("show", *conversation, "--events", "1", "-v", *at).stdout
    none = call("show", *conversation, "--events", "0", *at).stdout
    lines = call("show", *conversation, "--events", "2", "--json", *at).stdout
    session, *events = map(json.loads, lines.splitlines())

    assert "(3 earlier events)" in one
    assert "Yes." in one
    assert events[1]["event"]["id"] in one
    assert "get_weather" not in one
    assert "Yes." not in none
    assert "State of the session" in none
    assert (session["title"], session["revision"]) == ("Trip to Turin", 4)
    assert session["state"]["user:city"] == "Turin"
    assert [each["revision"] for each in events] == [3, 4]
    assert events[0]["event"]["actions"]["stateDelta"] == {"user:city": "Turin"}


async def test_sealed_content_is_shown_as_sealed(
    mongodb_uri: str, database: str, at: tuple[str, ...]
) -> None:
    """A command has no key: it marks such an event, and shows a value as stored."""
    async with MongoSessionService(mongodb_uri, database=database, **SEALED) as sealing:
        session = await sealing.create_session(**KEY, state=STATE)
        await sealing.append_event(session, canary_event())

    text = call("show", *KEY.values(), *at)
    lines = call("show", *KEY.values(), "--json", *at)
    session_line, event_line = map(json.loads, lines.stdout.splitlines())

    assert text.returncode == lines.returncode == 0
    assert "(sealed by before_store" in text.stdout
    assert 'own = {"sealed": "' in text.stdout
    assert "1 event sealed" in text.stderr
    assert (event_line["event"], event_line["sealed"]) == (None, True)
    assert set(session_line["state"]["app:motto"]) == {"sealed"}
    assert CANARY not in text.stdout + lines.stdout


@pytest.mark.parametrize(
    "damage",
    [
        {"$set": {"event.content": 5}},
        {"$set": {"event": [1]}},
        {"$unset": {"event": 1}},
        {"$set": {"event.timestamp": "noon"}},
    ],
    ids=str,
)
async def test_an_event_that_cannot_be_read_hides_no_other(
    at: tuple[str, ...],
    conversation: tuple[str, ...],
    admin: MongoClient,
    database: str,
    damage: dict[str, Any],
) -> None:
    """What another program or release has written is named, and the rest is shown."""
    admin[database].events.update_one({"_id.revision": 4}, damage)

    done = call("show", *conversation, *at)

    assert done.returncode == 0
    assert "(the installed release of ADK cannot read it)" in done.stdout
    assert "Is it warm?" in done.stdout


async def test_a_stop_is_shown_after_the_words_that_it_stopped(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """Only there: as JSON, events come in the order of the log."""
    session = await service.create_session(**ADA, session_id="s")
    stop = {"error_code": "INVOCATION_ABORTED", "error_message": "Stopped."}
    for number, more in enumerate(
        ({}, stop, stop, {"interrupted": True}, {"interrupted": True}, {}, stop)
    ):
        event = Event(author=f"a{number}", invocation_id="i", **more)
        await service.append_event(session, event)
    text = call("show", *ADA.values(), "s", *at).stdout
    lines = call("show", *ADA.values(), "s", "--json", *at).stdout.splitlines()

    assert re.findall(r"^r(\d)", text, re.MULTILINE) == [*"1452367"]
    assert [json.loads(each)["revision"] for each in lines[1:]] == [*range(1, 8)]
