"""A turn whose session is deleted, erased or expires ends, and leaves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.tools import ToolContext
from pymongo import MongoClient
from support.conversations import runner_of, start
from support.raw_search import traces_of
from support.scripted_model import ScriptedModel, call, said
from support.spoken_model import SpokenModel
from support.subscriptions import until
from test_partials import read_until, spoken

from mongo_session_service import MongoSessionService, Subscription
from mongo_session_service.testing import Limits
from mongo_session_service.turns.running_turns import GONE_SECONDS

IDS = {"app_name": "app", "user_id": "ada@example.org", "session_id": "monday"}
OWNER = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}
SECONDS = 2.0
"""In which a turn ends whose session is gone, also beside much other work."""

pytestmark = pytest.mark.limits(stop_poll_seconds=0.1, abort_seconds=0.1)


@pytest.fixture
async def elsewhere(
    mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """The service of another server, which shares nothing but the database."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        yield service


def watch(service: MongoSessionService, **options: Any) -> Subscription:
    return service.watch(*IDS.values(), partials=True, **options)


async def chatter(model: SpokenModel) -> None:
    """Say a word every hundredth of a second."""
    while True:
        model.say("overheard ")
        await asyncio.sleep(0.01)


Removal = Callable[[MongoSessionService], Awaitable[object]]

REMOVALS: dict[str, Removal] = {
    "delete_session": lambda service: service.delete_session(**IDS),
    "delete_user": lambda service: service.delete_user(
        app_name=IDS["app_name"], user_id=IDS["user_id"]
    ),
    "delete_app": lambda service: service.delete_app(app_name=IDS["app_name"]),
}


def test_a_turn_has_less_than_two_seconds() -> None:
    """Until the look for its session, the signal and the cancellation have gone by."""
    waits = (Limits().stop_poll_seconds, Limits().abort_seconds, GONE_SECONDS)
    assert sum(waits) < SECONDS


@pytest.mark.parametrize("removal", REMOVALS)
async def test_a_turn_ends_with_its_session_and_leaves_nothing(
    removal: str,
    service: MongoSessionService,
    elsewhere: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
) -> None:
    """Within two seconds, for its readers as for MongoDB, whoever has removed it."""
    model = SpokenModel()
    await service.create_session(**IDS)
    async with watch(elsewhere) as changes:
        running = await start(service, model, ids=IDS)
        talking = asyncio.create_task(chatter(model))
        while (await anext(changes)).kind != "partial":
            pass
        erases = removal != "delete_session"
        await REMOVALS[removal](elsewhere)
        left = traces_of(IDS["user_id"], admin, database)
        began = time.monotonic()
        with pytest.raises(SessionNotFoundError, match="while its turn ran"):
            await running.result()
        assert time.monotonic() - began < SECONDS
        received = [each async for each in changes]
    talking.cancel()
    assert not (erases and left)  # not even for a moment
    assert received[-1].kind == "deleted"
    assert running.turn.info.status == "failed"
    assert "was deleted, or has expired" in (running.turn.info.reason or "")
    assert not await service.stop_turn(**IDS)
    await until(lambda: not traces_of(IDS["user_id"], admin, database))
    await service.close()  # which writes what is left
    assert not traces_of(IDS["user_id"], admin, database)


async def test_a_turn_ends_when_its_session_expires(
    service: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """At its time, though nobody has removed it yet."""
    model = SpokenModel()
    await service.create_session(**IDS)
    running = await start(service, model, ids=IDS)
    model.say("overheard")
    await until(lambda: admin[database].partials.count_documents({}) > 1)
    began = time.time()
    admin[database].sessions.update_one({}, {"$set": {"expire_time": began}})
    with pytest.raises(SessionNotFoundError):
        await running.result()
    assert time.time() - began < SECONDS
    await until(lambda: not admin[database].partials.count_documents({}))


async def test_what_was_deleted_can_be_stopped_until_it_has_ended(
    mongodb_uri: str, database: str
) -> None:
    """Where it runs, whose process is the only one that knows of it."""
    limits = Limits(stop_poll_seconds=60)
    model = SpokenModel()
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=limits
    ) as service:
        await service.create_session(**IDS)
        running = await start(service, model, ids=IDS)
        await service.delete_session(**IDS)
        assert await service.stop_turn(**IDS)
        with pytest.raises(SessionNotFoundError):
            await running.result()
        assert not await service.stop_turn(**IDS)


async def test_a_stubborn_agent_delays_nobody(
    service: MongoSessionService, elsewhere: MongoSessionService
) -> None:
    """The turn ends though it ignores its cancellation, and what it adds is refused."""
    is_over = asyncio.Event()

    async def ignore_all(tool_context: ToolContext) -> dict[str, str]:
        while not is_over.is_set():
            with suppress(asyncio.CancelledError):
                await is_over.wait()
        tool_context.state["late"] = True
        return {}

    await service.create_session(**IDS)
    model = ScriptedModel(script=[call("ignore_all"), "Late."])
    runner = runner_of(service, model, tools=[ignore_all])
    running = await service.start_turn(runner, **OWNER, new_message=said("go"))
    await until(lambda: model.requests)
    await elsewhere.delete_session(**IDS)
    await elsewhere.create_session(**IDS)
    began = time.monotonic()
    with pytest.raises(SessionNotFoundError):
        await running.result()
    assert time.monotonic() - began < SECONDS
    is_over.set()
    await until(running.turn.runaway.done)
    kept = await service.get_session(**IDS)
    assert kept is not None
    assert (kept.events, kept.state) == ([], {})


async def test_a_tool_may_erase_the_user_it_works_for(
    service: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """The erasure does not wait for the turn it is in, which ends afterwards."""

    async def forget_me() -> dict[str, bool]:
        await service.delete_user(app_name=IDS["app_name"], user_id=IDS["user_id"])
        return {"is_forgotten": True}

    await service.create_session(**IDS, state={"user:name": "Ada"})
    model = ScriptedModel(script=[call("forget_me"), "Bye."])
    runner = runner_of(service, model, tools=[forget_me])
    with pytest.raises(SessionNotFoundError):
        async for _ in service.run_turn(runner, **OWNER, new_message=said("go")):
            pass
    await until(lambda: not traces_of(IDS["user_id"], admin, database))


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_session_made_anew_has_nothing_of_the_former_one(
    is_at_once: bool,  # noqa: FBT001
    service: MongoSessionService,
    elsewhere: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
) -> None:
    """Neither a word nor a status, for early and late readers, of it and of its app."""
    former, model = SpokenModel(), SpokenModel()
    await service.create_session(**IDS)
    first = await start(service, former, ids=IDS)
    former.say("former ")
    async with watch(elsewhere) as changes:
        await read_until(changes, "former ")
    async with elsewhere.watch(IDS["app_name"], partials=True) as broad:
        await service.delete_session(**IDS)
        await service.create_session(**IDS)
        async with watch(elsewhere) as early:
            former.say("words ")
            if not is_at_once:
                with pytest.raises(SessionNotFoundError):
                    await first.result()
            second = await start(elsewhere, model, ids=IDS)
            assert second.epoch == first.epoch
            former.say("more words ")
            model.say("mine")
            received = await read_until(early, "mine")
            async with watch(elsewhere) as late:
                found = await read_until(late, "mine")
        of_app = await read_until(broad, "mine")
    created = next(each.time for each in of_app if each.kind == "created")
    for changes_received in (received, found, of_app):
        texts = [*spoken(changes_received).values()]
        assert texts == ["mine"]
        turns = [each.turn for each in changes_received if each.turn]
        assert {each.session_create_time for each in turns} == {created}
        assert {each.status for each in turns} == {"running"}
    await second.stop()
    with pytest.raises(SessionNotFoundError):
        await first.result()
    own = {"create_time": created}
    await until(
        lambda: (
            admin[database].partials.count_documents({})
            == admin[database].partials.count_documents(own)
        )
    )
    kept = await service.get_session(**IDS)
    assert kept is not None
    assert "former" not in kept.model_dump_json()


async def test_a_former_turn_that_was_cut_off_hides_no_later_one(
    service: MongoSessionService,
    elsewhere: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
) -> None:
    """To those who watch an app, epochs of two sessions are not compared."""
    model = SpokenModel()
    await service.create_session(**IDS)
    admin[database].sessions.update_one({}, {"$set": {"turn.epoch": 7}})
    async with elsewhere.watch(IDS["app_name"], partials=True) as broad:
        cut_off = await start(service, model, ids=IDS)
        assert cut_off.epoch == 8
        model.say("former")
        await read_until(broad, "former")
        await service.delete_session(**IDS)
        await service.create_session(**IDS)
        with pytest.raises(SessionNotFoundError):
            await cut_off.result()
        model = SpokenModel()
        running = await start(service, model, ids=IDS)
        model.say("mine")
        await read_until(broad, "mine")
    await running.stop()


async def test_a_late_reader_receives_no_text_whose_beginning_is_gone(
    service: MongoSessionService,
    elsewhere: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
) -> None:
    """It expires after ten minutes: the text comes whole; who has it, goes on."""
    model = SpokenModel()
    await service.create_session(**IDS)
    running = await start(service, model, ids=IDS)
    partials = admin[database].partials
    async with watch(elsewhere) as early:
        model.say("one ")
        received = await read_until(early, "one ")
        model.say("two ")
        await until(lambda: partials.count_documents({"event": {"$exists": True}}) == 2)
        for _ in range(2):  # the turn's begin, and "one "
            partials.find_one_and_delete({}, sort={"_id": 1})
        place = (received[-1].turn.epoch, received[-1].turn_position)
        began = datetime.now(UTC) - timedelta(minutes=11)
        admin[database].sessions.update_one({}, {"$set": {"turn.since": began}})
        async with (
            watch(elsewhere) as late,
            watch(
                elsewhere, after_revision=early.last_revision, after_partial=place
            ) as again,
        ):
            model.say("three")
            received += await read_until(again, "two three")
            model.end_answer()
            await running.result()
            found = await late_changes(late)
    assert [*spoken(received).values()] == ["one two three"]
    assert spoken(found) == {}
    assert [each.kind for each in found] == ["snapshot", "turn", "appended"]
    assert found[1].turn.status == "running"
    assert found[-1].event.content.parts[0].text == "one two three"


async def late_changes(changes: Subscription) -> list[Any]:
    """What is received until the answer is stored."""
    found = []
    async for change in changes:
        found.append(change)
        if change.kind == "appended" and change.event.author == "agent":
            break
    return found
