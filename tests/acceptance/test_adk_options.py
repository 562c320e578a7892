"""A session's details through ADK's own REST API: what its ``options`` are for."""

from __future__ import annotations

from pathlib import Path

from pymongo import MongoClient
from support.adk_tools import adk, sessions_of, turn, with_database, write_agents


def test_options_reach_the_service(
    tmp_path: Path, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """``options`` set title, labels and end; what is wrong with them is answered."""
    write_agents(tmp_path / "agents")
    uri = with_database(mongodb_uri, database)
    details = {"title": "Colours", "labels": {"team": "blue"}, "ttl": 1000}
    sessions = sessions_of("ada")
    with adk("api_server", tmp_path / "agents", uri) as server:
        api = server.api
        created = api.post(sessions, json={"session_id": "s1", "options": details})
        end = {"expire_time": "2100-01-01T00:00:00+01:00"}
        api.post(sessions, json={"session_id": "s2", "options": end})
        api.post("/run", json=turn("s1", "red")).raise_for_status()
        refused = [
            api.post(sessions, json={"session_id": "s3", "options": options})
            for options in ({"ttl": -1}, {"labels": {"a": 1}}, {"colour": "red"})
        ]
        listed = api.get(sessions).json()

    first, second = admin[database].sessions.find().sort("_id")
    assert created.status_code == 200
    assert first["title"] == "Colours"
    assert first["labels"] == [{"name": "team", "value": "blue"}]
    assert first["expire_time"] > first["create_time"] + 1000
    assert second["expire_time"] == 4102441200.0
    assert [each.status_code for each in refused] == [400] * 3
    assert "ttl must be more than 0" in refused[0].json()["detail"]
    assert "label 'a' must be a string" in refused[1].json()["detail"]
    assert {each["id"] for each in listed} == {"s1", "s2"}
