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

OWN = {b"app_name": b"app", b"user_id": b"user", b"session_id": b"own"}
DOCUMENTED = {200, 307, 400, 403, 404, 405}

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
names = st.sampled_from([*OWN, b"after_revision", b"history", b"list", b"limit", b""])
queries = st.builds(
    lambda changed, repeated: [*(OWN | changed).items(), *repeated],
    st.dictionaries(names, values, max_size=3),
    st.lists(st.tuples(names, values), max_size=2),
)
headers = st.none() | numbers | raw
paths = st.sampled_from(["/changes"] * 8 + ["/sessions", "/", "/changes/", "/x/.."])


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
    state = {"user:k": "the user's"}  # so that there is always something to be told
    await service.create_session(app_name="app", user_id="user", state=state)
    assert session.id == "own"
    async with serving(live_app(service, authorize=of_the_user)) as url:
        yield url


@settings(fuzzing, max_examples=EXAMPLES or 100)
@example("/changes", list(OWN.items()), None)
@example("/changes", list((OWN | {b"session_id": b"victim"}).items()), b"0")
@example("/sessions", [], None)
@given(path=paths, query=queries, last=headers)
async def test_hostile_requests_are_refused_or_concern_their_own(
    url: str, path: str, query: list[tuple[bytes, bytes]], last: bytes | None
) -> None:
    """An answer that is documented, never a failure, and nothing of another user."""
    status, body = await asked(url, path, query, last)

    assert status in DOCUMENTED
    assert SESAME.encode() not in body
    if (path, status) == ("/changes", 200):
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
            while not _tells_a_change(answer) and (more := await reader.read(65536)):
                answer += more
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]), answer


def _tells_a_change(answer: bytes) -> bool:
    _, is_there, rest = answer.partition(b"\nevent: ")
    return bool(is_there) and b"\n\n" in rest
