"""Test an agent on a real MongoDB that lives as long as the tests: run it by pytest."""

import asyncio
from collections.abc import Iterator

import pytest
from adk_runner import agent
from google.adk.runners import Runner
from google.genai import types

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet


@pytest.fixture(scope="session")
def mongodb_uri() -> Iterator[str]:
    with EmbeddedReplicaSet() as replica_set:  # started once, in about two seconds
        yield replica_set.uri


def test_the_agent_remembers_the_city(mongodb_uri: str) -> None:
    assert asyncio.run(city_after("I live in Oslo.", mongodb_uri)) == "Oslo"


async def city_after(text: str, uri: str) -> str:
    async with MongoSessionService(uri, database="test_agent") as service:
        runner = Runner(app_name="travel", agent=agent, session_service=service)
        session = await service.create_session(app_name="travel", user_id="ada")
        async for _ in runner.run_async(
            user_id="ada", session_id=session.id, new_message=types.UserContent(text)
        ):
            pass
        state = await service.get_user_state(app_name="travel", user_id="ada")
        return str(state["city"])
