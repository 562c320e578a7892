"""The service inside ADK's own tools, chosen by nothing but a ``services.yaml``."""

from __future__ import annotations

import json
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from google.adk.cli import service_registry
from google.adk.cli.fast_api import get_fast_api_app
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri
from support.adk_deploy import write_project
from support.adk_tools import (
    APP,
    PATIENCE,
    adk,
    adk_command,
    environment,
    forget_services,
    sessions_of,
    texts,
    turn,
    with_database,
    write_agents,
)

from mongo_session_service import MongoSessionService

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


@pytest.fixture
def registry(
    agents_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> service_registry.ServiceRegistry:
    """ADK's registry in this process, with ``services.yaml`` read."""
    forget_services(monkeypatch)
    service_registry.load_services_module(str(agents_dir))
    return service_registry.get_service_registry()


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


def test_patch_updates_state(api: httpx.Client) -> None:
    """PATCH changes the state of a session, its user and its app, as an event."""
    sessions = sessions_of("paula")
    api.post(sessions, json={"session_id": "s1", "state": {"kept": 1, "changed": 1}})
    delta = {"changed": [2], "user:name": "Paula", "app:patched": True}

    patched = api.patch(f"{sessions}/s1", json={"state_delta": delta})

    stored = api.get(f"{sessions}/s1").json()
    assert stored["state"] == {"kept": 1, **delta}
    assert [each["actions"]["stateDelta"] for each in stored["events"]] == [delta]
    assert patched.json()["state"] == stored["state"]


def test_delete_removes_session(api: httpx.Client) -> None:
    """DELETE removes one session; deleting it again is no error."""
    sessions = sessions_of("dora")
    for session_id in ("s1", "s2"):
        api.post(sessions, json={"session_id": session_id})

    deleted = [api.delete(f"{sessions}/s1").status_code for _ in range(2)]

    assert deleted == [200, 200]
    assert api.get(f"{sessions}/s1").status_code == 404
    assert [session["id"] for session in api.get(sessions).json()] == ["s2"]


def test_taken_id_is_a_conflict(api: httpx.Client) -> None:
    """Creating a session under a taken id is answered with 409 and changes nothing."""
    sessions = sessions_of("tina")
    first = api.post(sessions, json={"session_id": "s1", "state": {"a": 1}})

    second = api.post(
        sessions, json={"session_id": "s1", "state": {"a": 2, "user:a": 2}}
    )

    assert (first.status_code, second.status_code) == (200, 409)
    assert api.get(f"{sessions}/s1").json() == first.json()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (r'{"session_id": "\ud800"}', "session_id is not valid Unicode"),
        ('{"state": {"big": "%s"}}' % ("x" * 15_600_000), "'big'"),
    ],
    ids=["id", "size"],
)
def test_bad_input_is_refused(api: httpx.Client, body: str, reason: str) -> None:
    """What cannot be stored is answered with 400 and the reason, and is not stored."""
    sessions = sessions_of("bea")
    json_type = {"content-type": "application/json"}

    refused = api.post(sessions, content=body, headers=json_type)

    assert refused.status_code == 400, refused.text
    assert reason in refused.json()["detail"]
    assert api.get(sessions).json() == []


def test_session_that_is_not_there(api: httpx.Client) -> None:
    """Reading, patching or running a session that does not exist is answered 404."""
    missing = f"{sessions_of('ada')}/missing"

    answers = [
        api.get(missing),
        api.patch(missing, json={"state_delta": {"a": 1}}),
        api.post("/run", json=turn("missing", "red")),
        api.post("/run_sse", json=turn("missing", "red")),
    ]

    assert [answer.status_code for answer in answers] == [404] * 4


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


@pytest.mark.release
def test_password_of_an_unusable_uri_is_not_shown(agents_dir: Path) -> None:
    """A URI whose password is not escaped ends the server at once, without it."""
    uri = f"mongodb://user:{PASSWORD}:more@127.0.0.1:1/"

    result = subprocess.run(
        [*adk_command("api_server"), "--session_service_uri", uri, agents_dir],
        env=environment(agents_dir),
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=PATIENCE,
    )

    assert result.returncode == 1
    assert "The MongoDB URI cannot be used" in result.stderr
    assert PASSWORD not in result.stdout + result.stderr


@pytest.mark.parametrize("scheme", ["mongodb", "mongodb+srv"])
def test_registry_builds_the_service(
    registry: service_registry.ServiceRegistry,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
) -> None:
    """ADK's registry builds the service for both schemes and contacts nothing."""
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setattr(socket, "getaddrinfo", None)
    uri = f"{scheme}://user:{PASSWORD}@cluster.example.invalid/db"

    built = registry.create_session_service(uri, agents_dir="agents")

    assert type(built) is MongoSessionService


@pytest.mark.usefixtures("registry")
async def test_fast_api_app_in_this_process(
    agents_dir: Path, mongodb_uri: str, database: str
) -> None:
    """An app that ``get_fast_api_app`` makes keeps its sessions in MongoDB.

    Under an id that no session can have, it answers as under any unknown one.
    """
    app = get_fast_api_app(
        agents_dir=str(agents_dir),
        session_service_uri=with_database(mongodb_uri, database),
        web=False,
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as api:
        await api.post(sessions_of("ada"), json={"session_id": "s1"})
        ran = await api.post("/run", json=turn("s1", "red"))
        stored = await api.get(f"{sessions_of('ada')}/s1")
        for path in (f"{sessions_of('ada')}/%20", f"{sessions_of('a' * 4097)}/s1"):
            assert (await api.get(path)).status_code == 404
            assert (await api.delete(path)).is_success
        assert (await api.get(sessions_of("a" * 4097))).json() == []

    assert texts(ran.json()) == ["I was sent 3 contents."]
    assert stored.json()["events"][1:] == ran.json()
