"""The folders that ``adk deploy`` stages, as they run where they are deployed to."""

from __future__ import annotations

from pathlib import Path

import pytest
from pymongo import MongoClient
from support.adk_deploy import COMMANDS, deploy, write_project
from support.adk_tools import PATIENCE, sessions_of, texts, turn, with_database

SECRET = "secret-password"  # noqa: S105  it opens nothing
pytestmark = pytest.mark.xdist_group("api")


@pytest.mark.parametrize("target", COMMANDS)
def test_a_deployed_folder_names_the_service_and_no_secret(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent away has ``services.py`` where it is imported, and no password."""
    monkeypatch.setenv("MONGODB_URI", f"mongodb://user:{SECRET}@127.0.0.1/")
    write_project(tmp_path)

    container = deploy(target, tmp_path, monkeypatch)

    assert (container.app / "services.py").is_file()
    assert "--session_service_uri=mongodb://" in container.command
    sent = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert sent
    assert [path for path in sent if SECRET in path.read_text()] == []


@pytest.mark.release
@pytest.mark.parametrize("target", COMMANDS)
def test_a_deployed_conversation_outlives_its_container(
    target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
) -> None:
    """A container that is killed is replaced by one that continues the session."""
    uri = with_database(mongodb_uri, database)
    write_project(tmp_path)
    container = deploy(target, tmp_path, monkeypatch)

    with container.running(uri) as server:
        server.api.post(sessions_of("ada"), json={"session_id": "s1"})
        server.api.post("/run", json=turn("s1", "red")).raise_for_status()
        stored = server.api.get(f"{sessions_of('ada')}/s1").json()
        server.process.kill()
        assert server.process.wait(PATIENCE) == -9
    with container.running(uri) as server:
        assert server.api.get(f"{sessions_of('ada')}/s1").json() == stored
        ran = server.api.post("/run", json=turn("s1", "blue"))

    assert texts(ran.json()) == ["I was sent 7 contents."]
    (session,) = admin[database].sessions.find()
    assert session["revision"] == 8
