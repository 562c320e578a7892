"""The service inside ADK's own tools, chosen by nothing but a ``services.yaml``."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri
from support.adk_deploy import write_project
from support.adk_tools import (
    APP,
    PATIENCE,
    adk,
    adk_command,
    environment,
    sessions_of,
    texts,
    turn,
    with_database,
    write_agents,
)

PASSWORD = "secret-password"  # noqa: S105  it opens nothing
pytestmark = pytest.mark.xdist_group("api")


@pytest.fixture(scope="module")
def agents_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an agent and a ``services.yaml``."""
    directory = tmp_path_factory.mktemp("adk") / "agents"
    write_agents(directory)
    return directory


@pytest.fixture(scope="module")
def api(
    agents_dir: Path, mongodb_uri: str, admin: MongoClient
) -> Iterator[httpx.Client]:
    """The REST API of one server for all tests that do not end it."""
    name = f"test_{uuid.uuid4().hex}"
    with adk("api_server", agents_dir, with_database(mongodb_uri, name)) as server:
        yield server.api
    admin.drop_database(name)


def test_conversation_outlives_a_killed_server(
    agents_dir: Path, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """A conversation over REST is the same, and goes on, after the server's SIGKILL."""
    uri = with_database(mongodb_uri, database)
    state = {"topic": "art", "user:name": "Ada", "app:motto": "bold", "temp:x": 1}
    new = {"session_id": "s1", "state": state}
    with adk("api_server", agents_dir, uri) as server:
        server.api.post(sessions_of("ada"), json=new).raise_for_status()
        ran = server.api.post("/run", json=turn("s1", "red"))
        streamed = server.api.post("/run_sse", json=turn("s1", "blue"))
        stored = server.api.get(f"{sessions_of('ada')}/s1").json()
        server.process.kill()
        assert server.process.wait(PATIENCE) == -9

    assert texts(ran.json()) == ["I was sent 3 contents."]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    lines = [
        line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line
    ]
    assert stored["events"][1:4] == ran.json()
    assert stored["events"][5:8] == [json.loads(line) for line in lines]
    assert stored["state"] == {
        "topic": "art",
        "latest": "blue",
        "answer": "I was sent 7 contents.",
        "user:name": "Ada",
        "user:favourite": "blue",
        "app:motto": "bold",
        "app:liked": 2,
    }
    assert admin[database].events.count_documents({"event.author": "painter"}) == 6
    with adk("api_server", agents_dir, uri) as server:
        assert server.api.get(f"{sessions_of('ada')}/s1").json() == stored
        ran = server.api.post("/run", json=turn("s1", "green"))
        assert texts(ran.json()) == ["I was sent 11 contents."]


def test_taken_id_is_a_conflict(api: httpx.Client) -> None:
    """Creating a session under a taken id is answered with 409 and changes nothing."""
    sessions = sessions_of("tina")
    first = api.post(sessions, json={"session_id": "s1", "state": {"a": 1}})

    second = api.post(
        sessions, json={"session_id": "s1", "state": {"a": 2, "user:a": 2}}
    )

    assert (first.status_code, second.status_code) == (200, 409)
    assert api.get(f"{sessions}/s1").json() == first.json()


@pytest.mark.release
def test_adk_web_lists_sessions(
    tmp_path: Path, mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``adk web`` shows its page, lists a user's sessions and ends cleanly.

    Its service is the one of ``services.py``, which knows the URI.
    """
    write_project(tmp_path)
    monkeypatch.setenv("MONGODB_URI", with_database(mongodb_uri, database))
    with adk("web", tmp_path / "agents", "mongodb://") as server:
        for user_id, session_id in (("ada", "s1"), ("ada", "s2"), ("eve", "s3")):
            new = {"session_id": session_id, "state": {"user:name": user_id}}
            server.api.post(sessions_of(user_id), json=new).raise_for_status()
        listed = server.api.get(sessions_of("ada")).json()
        page = server.api.get("/dev-ui/")
        server.process.terminate()
        server.process.wait(PATIENCE)

    assert [(each["id"], each["state"]) for each in listed] == [
        ("s1", {"user:name": "ada"}),
        ("s2", {"user:name": "ada"}),
    ]
    assert page.status_code == 200
    assert "Traceback" not in server.log.read_text()


@pytest.mark.release
def test_adk_run_continues_a_session(
    agents_dir: Path, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """``adk run`` stores a session that its next run continues."""
    uri = with_database(mongodb_uri, database)
    options = ["--session_service_uri", uri, "--session_id", "s1"]
    for colour in ("red", "blue"):
        subprocess.run(
            [*adk_command("run"), *options, agents_dir / APP, colour],
            env=environment(agents_dir),
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )

    (session,) = admin[database].sessions.find()
    assert session["revision"] == 8
    assert session["state"] == {"latest": "blue", "answer": "I was sent 7 contents."}


@pytest.mark.release
@pytest.mark.parametrize("failure", ["unreachable", "refused"])
def test_password_is_never_shown(
    agents_dir: Path, mongodb_uri: str, failure: str
) -> None:
    """A server that cannot use MongoDB says so without the password of its URI."""
    hosts = ",".join(
        f"{host}:{port}" for host, port in parse_uri(mongodb_uri)["nodelist"]
    )
    where = {"unreachable": "127.0.0.1:1", "refused": hosts}[failure]
    uri = f"mongodb://user:{PASSWORD}@{where}/?serverSelectionTimeoutMS=1000"

    with adk("api_server", agents_dir, uri, "--log_level=debug") as server:
        answers = [
            server.api.post(sessions_of("ada")),
            server.api.get(sessions_of("ada")),
            server.api.post("/run", json=turn("s1", "red")),
        ]

    output = server.log.read_text()
    assert [answer.status_code for answer in answers] == [500] * 3
    assert answers[0].json()["detail"].startswith("MongoDB ")
    assert "MongoDB" in output
    assert PASSWORD not in output + "".join(answer.text for answer in answers)
