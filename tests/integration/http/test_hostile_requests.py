"""The app that shows sessions live, asked what should never have come its way.

``FUZZ_EXAMPLES=2000 scripts/test -k hostile_requests`` does it more often.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import quote_from_bytes, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from starlette.requests import Request
from support.attack_surface import SESAME, Besieged
from support.hostile_values import EXAMPLES, fuzzing, texts
from support.http_server import PATIENCE, serving

from mongo_session_service import MongoSessionService
from mongo_session_service.http import live_app

DOCUMENTED = {200, 307, 400, 403, 404, 405, 422}

raw = st.binary(max_size=12) | texts.filter(lambda text: len(text) < 5000).map(
    lambda text: str.encode(text, "utf-8", "surrogatepass")
)
numbers = st.integers().map(lambda number: str(number).encode()) | st.sampled_from(
    [b"0", b"1", b"2", b"+1", b"-0", b"1e3", b"0x1", b"1_0", b" 1", b"9" * 18]
    + [b"9" * 19, b"9" * 5000, "²".encode(), b"\xd9\xa1", b"NaN", b"Infinity"]
)
values = (
    raw
    | numbers
    | st.sampled_from(
        [b"all", b"own", b"victim", b"user", b"app", b"sessions", b"events"]
    )
)
names = st.sampled_from(
    [b"after_revision", b"history", b"limit", b"at_revision", b"session_id"]
    + [b"page_token", b"numRecentEvents", b"afterTimestamp", b"include_eval", b""]
)
queries = st.lists(st.tuples(names, values), max_size=3)
headers = st.none() | numbers | raw

USER = "/apps/app/users/user"
ids = (
    st.sampled_from([b"own", b"victim", b"..", b".", b"%2F", b"a/b", b"\0"])
    | raw
    | st.binary(min_size=1025, max_size=1100)
)
ends = st.sampled_from(["", "/events", "/changes", "/fork", "/", "/x"])
paths = st.sampled_from(
    ["/", "/apps", "/changes", "/static/live.js", "/static/..%2Flive.py"]
    + ["/apps/app/sessions", "/apps/app/changes", "/apps/victim/sessions"]
    + [f"{USER}/sessions", f"{USER}/changes", "/apps/app/users/victim/changes"]
) | st.builds(
    lambda app, user, id_, end: (
        f"/apps/{app}/users/{user}/sessions/{quote_from_bytes(id_, safe='')}{end}"
    ),
    st.sampled_from(["app"] * 4 + ["victim"]),
    st.sampled_from(["user"] * 4 + ["victim"]),
    ids,
    ends,
)


def of_the_user(
    _: Request, *, app_name: str, user_id: str, action: str, **__: object
) -> bool:
    is_read = action in {"read", "list"}
    return is_read and (app_name, user_id) == ("app", "user")


@pytest.fixture
async def url(service: MongoSessionService, admin: MongoClient) -> AsyncIterator[str]:
    """Where a user is served, with others' sessions in the database."""
    besieged = Besieged(service, admin)
    await besieged.populate()
    session = await besieged.own_session()
    state = {"user:k": "the user's"}  # so that there is always something to be received
    await service.create_session(app_name="app", user_id="user", state=state)
    assert session.id == "own"
    async with serving(live_app(service, authorize=of_the_user)) as url:
        yield url


@settings(fuzzing, max_examples=EXAMPLES or 100)
@example(f"{USER}/sessions/own/changes", [], None)
@example(f"{USER}/changes", [(b"session_id", b"victim")], b"0")
@example("/apps/app/users/victim/sessions/own/changes", [], b"0")
@example("/apps", [], None)
@given(path=paths, query=queries, last=headers)
async def test_hostile_requests_are_refused_or_concern_their_own(
    url: str, path: str, query: list[tuple[bytes, bytes]], last: bytes | None
) -> None:
    """An answer that is documented, never a failure, and nothing of another user."""
    status, body = await asked(url, path, query, last)

    assert status in DOCUMENTED
    assert SESAME.encode() not in body
    if path.startswith(f"{USER}/sessions/own/changes") and status == 200:
        assert b'"user_id":"user"' in body
        assert b"event: trouble" not in body


async def asked(
    url: str, path: str, query: list[tuple[bytes, bytes]], last: bytes | None
) -> tuple[int, bytes]:
    """The status of an answer, and what there is of it up to the first change."""
    pairs = ["=".join(map(quote_from_bytes, each)) for each in query]
    lines = [f"GET {path}?{'&'.join(pairs)} HTTP/1.1", "Host: 127.0.0.1"]
    request = "\r\n".join([*lines, "Connection: close", ""]).encode()
    if last is not None:
        request += b"Last-Event-ID: " + last.replace(b"\n", b"") + b"\r\n"
    target = urlsplit(url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    answer = b""
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(request + b"\r\n")
            while not _has_begun(answer, path) and (more := await reader.read(65536)):
                answer += more
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]), answer


def _has_begun(answer: bytes, path: str) -> bool:
    """True once a session's stream has a change, or one of several has begun."""
    begin = b"\nevent: " if "/sessions/" in path else b"\nretry: "
    _, is_there, rest = answer.partition(begin)
    return bool(is_there) and b"\n\n" in rest
