"""A running turn goes on through changes of primary, and so do those who follow it."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import Runner
from support.one_session import IDS
from support.patience import PATIENCE
from support.replica_set import FailingReplicaSet
from support.scripted_model import said
from support.spoken_model import SpokenModel

from mongo_session_service import MongoSessionService, Subscription

FAULTS = 3


class Listener:
    """Puts together what is said, by event id."""

    def __init__(self, changes: Subscription) -> None:
        self._changes = changes
        self.texts: dict[str, str] = defaultdict(str)
        self.stored: dict[str, str] = {}

    async def until(self, *, says: str = "", stores: str = "") -> None:
        """Read until somebody has said a text, or it is stored."""
        async with asyncio.timeout(PATIENCE):
            while (
                says not in self.texts.values() and stores not in self.stored.values()
            ):
                change = await anext(self._changes)
                if change.event is None or change.event.author != "agent":
                    continue
                (part,) = change.event.content.parts
                if change.kind == "partial":
                    self.texts[change.event.id] += part.text
                elif change.kind == "appended":
                    self.stored[change.event.id] = part.text

    def _has_received(self, says: str, stores: str) -> bool:
        return says in self.texts.values() or stores in self.stored.values()


@pytest.mark.release
@pytest.mark.xdist_group("heavy")
async def test_an_answer_survives_its_primaries() -> None:
    """Each primary is killed in the middle of an answer: no word is lost or doubled."""
    with FailingReplicaSet(members=3) as replica_set:
        uri = f"{replica_set.uri}&heartbeatFrequencyMS=500"
        async with (
            MongoSessionService(uri) as holder,
            MongoSessionService(uri) as follower,
        ):
            await holder.create_session(**IDS)
            model = SpokenModel()
            agent = LlmAgent(name="agent", model=model)
            runner = Runner(
                agent=agent, app_name=IDS["app_name"], session_service=holder
            )
            async with follower.watch(*IDS.values(), partials=True) as changes:
                listener = Listener(changes)
                for number in range(FAULTS):
                    running = await holder.start_turn(
                        runner,
                        user_id=IDS["user_id"],
                        session_id=IDS["session_id"],
                        new_message=said("well?"),
                        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
                    )
                    model.say(f"{number}: one ")
                    await listener.until(says=f"{number}: one ")
                    primary = await asyncio.to_thread(lambda: replica_set.primary)
                    await asyncio.to_thread(replica_set.stop_member, primary, kill=True)
                    model.say("two ")
                    await listener.until(says=f"{number}: one two ")
                    await asyncio.to_thread(replica_set.start_member, primary)
                    model.say("three")
                    model.end_answer()
                    await listener.until(stores=f"{number}: one two three")
                    await running.result()
            assert all(
                listener.stored[id_].startswith(text)
                for id_, text in listener.texts.items()
            )
            session = await holder.get_session(**IDS)
            assert session is not None
            assert len(session.events) == 2 * FAULTS
