"""What a process does whose users send several messages to one session at once."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from google.adk.agents import LlmAgent
from google.adk.runners import Runner

from mongo_session_service import MongoSessionService, RunningTurn
from mongo_session_service.errors import TurnInterruptedError
from support.one_session import IDS
from support.scripted_model import said
from support.spoken_model import SpokenModel

WAIT = 60.0


def send(uri: str, database: str, count: int, pipe: Connection) -> None:
    """Start so many turns that interrupt; report what became of each.

    The agent never answers: a turn goes on until another one interrupts it.
    """
    asyncio.run(_send(uri, database, count, pipe))


async def _send(uri: str, database: str, count: int, pipe: Connection) -> None:
    async with MongoSessionService(uri, database=database) as service:
        agent = LlmAgent(name="agent", model=SpokenModel())
        runner = Runner(agent=agent, app_name=IDS["app_name"], session_service=service)

        async def start(number: int) -> RunningTurn | None:
            try:
                return await service.start_turn(
                    runner,
                    user_id=IDS["user_id"],
                    session_id=IDS["session_id"],
                    new_message=said(str(number)),
                    interrupt=True,
                    wait=WAIT,
                )
            except TurnInterruptedError:
                return None

        turns = await asyncio.gather(*(start(number) for number in range(count)))
        pipe.send("all have begun, or were interrupted")
        await asyncio.to_thread(pipe.recv)
        statuses = [each and each.turn.info.status for each in turns]
        await service.close(grace=0)
    pipe.send(statuses)
