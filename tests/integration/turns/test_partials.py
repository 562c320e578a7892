"""What a running turn says reaches readers elsewhere, early, late or back again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest
from pymongo import MongoClient
from support.abandoned_turns import abandon_turn
from support.conversations import start
from support.failpoints import failing, victim_uri
from support.one_session import IDS
from support.spoken_model import SpokenModel
from support.subscriptions import change_streams, until

from mongo_session_service import Change, MongoSessionService, RunningTurn, Subscription
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.codec.partials import partial_document
from mongo_session_service.testing import Limits


@pytest.fixture
async def elsewhere(
    mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """The service of another server, which shares nothing but the database."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        yield service


@pytest.fixture
async def model() -> SpokenModel:
    return SpokenModel()


@pytest.fixture
async def running(service: MongoSessionService, model: SpokenModel) -> RunningTurn:
    """A turn in which the model is asked something."""
    await service.create_session(**IDS)
    return await start(service, model)


def watch(service: MongoSessionService, **options: Any) -> Subscription:
    return service.watch(*IDS.values(), partials=True, **options)


async def read_until(changes: Subscription, text: str) -> list[Change]:
    """What is received until a text was said, all pieces of an event put together."""
    received: list[Change] = []
    while True:
        received.append(await anext(changes))
        if text in spoken(received).values():
            return received


async def read_until_stopped(changes: Subscription) -> list[Change]:
    """What is received until the turn was stopped: nothing of it is written later."""
    received: list[Change] = []
    async for change in changes:
        received.append(change)
        if change.turn is not None and change.turn.status == "stopped":
            break
    return received


async def read_until_end(changes: Subscription) -> list[Change]:
    """What is received until the turn has ended, and its last event is there."""
    received: list[Change] = []
    is_ended = is_answered = False
    while not (is_ended and is_answered):
        change = await anext(changes)
        received.append(change)
        is_ended |= change.turn is not None and change.turn.status == "ended"
        is_answered |= change.kind == "appended" and change.event.author == "agent"
    return received


def spoken(changes: list[Change]) -> dict[tuple[str, bool], str]:
    """The texts of the partials, by event id and kind, put one after another."""
    texts: dict[tuple[str, bool], str] = defaultdict(str)
    for each in changes:
        if each.kind == "partial":
            for part in each.event.content.parts:
                texts[each.event.id, bool(part.thought)] += part.text
    return dict(texts)


async def test_readers_in_other_processes_receive_partials(
    elsewhere: MongoSessionService, running: RunningTurn, model: SpokenModel
) -> None:
    """An early and a late one; the stored event has the id of its pieces."""
    async with watch(elsewhere) as early:
        model.say("one ", "two ")
        received = await read_until(early, "one two ")
        model.say("three")
        received += await read_until(early, "three")
        async with watch(elsewhere) as late:
            first = await read_until(late, "one two three")
            model.end_answer()
            rest = await read_until_end(late)
            received += await read_until_end(early)

    (answer,) = (each for each in rest if each.kind == "appended")
    for heard in (received, [*first, *rest]):
        assert spoken(heard) == {(answer.event.id, False): "one two three"}
    whole = await running.result()
    assert [each.id for each in whole] == [answer.event.id]


async def test_the_status_of_the_turn_is_received(
    elsewhere: MongoSessionService, running: RunningTurn, model: SpokenModel
) -> None:
    """Its begin, and why and how it ended, with the epoch of the turn."""
    async with watch(elsewhere) as changes:
        model.say("well")
        received = await read_until(changes, "well")
        await elsewhere.stop_turn(**IDS, reason="enough")
        received += await read_until_stopped(changes)

    turns = [each.turn for each in received if each.kind == "turn"]
    assert [each.status for each in turns] == ["running", "stopping", "stopped"]
    assert {each.epoch for each in turns} == {running.epoch}
    assert [each.reason for each in turns] == [None, "enough", "enough"]
    (found,) = await elsewhere.find_turns(app_name=IDS["app_name"], status="stopped")
    assert turns[-1] == found


async def test_thoughts_and_answer_are_apart(
    elsewhere: MongoSessionService, running: RunningTurn, model: SpokenModel
) -> None:
    """They have one id, and are told apart by their kind."""
    async with watch(elsewhere) as changes:
        model.say("Hm, ", thought=True)
        model.say("I ")
        model.say("well.", thought=True)
        model.say("see.")
        received = await read_until(changes, "I see.")

    ((answer_id, _), *_) = spoken(received)
    assert spoken(received) == {
        (answer_id, True): "Hm, well.",
        (answer_id, False): "I see.",
    }
    await running.stop()


async def test_a_reader_that_comes_back_goes_on(
    elsewhere: MongoSessionService, running: RunningTurn, model: SpokenModel
) -> None:
    """After what it has received, nothing is received twice, and nothing is missing."""
    async with watch(elsewhere) as changes:
        model.say("one ")
        before = await read_until(changes, "one ")
        revision = changes.last_revision
    model.say("two ")
    place = (before[-1].turn.epoch, before[-1].turn_position)
    async with watch(
        elsewhere, after_revision=revision, after_partial=place
    ) as changes:
        after = await read_until(changes, "two ")
        model.say("three")
        after += await read_until(changes, "three")
        model.end_answer()
        after += await read_until_end(changes)
    (text,) = spoken([*before, *after]).values()
    assert text == "one two three"
    await running.result()


async def test_partials_of_a_stored_event_are_not_delivered_again(
    elsewhere: MongoSessionService,
    service: MongoSessionService,
    running: RunningTurn,
    model: SpokenModel,
) -> None:
    """A reader that comes between two turns, or in the next one, receives its own."""
    model.say("first")
    model.end_answer()
    await running.result()
    async with watch(elsewhere) as changes:
        assert (await anext(changes)).kind == "snapshot"
        second = await start(service, model)
        model.say("second")
        received = await read_until(changes, "second")
        async with watch(elsewhere) as late:
            found = await read_until(late, "second")
    assert list(spoken(received).values()) == ["second"]
    assert list(spoken(found).values()) == ["second"]
    model.end_answer()
    await second.result()


async def test_a_former_holder_adds_nothing_to_a_newer_turn(
    elsewhere: MongoSessionService,
    running: RunningTurn,
    model: SpokenModel,
    admin: MongoClient,
    database: str,
) -> None:
    """What it writes late has its own, older epoch, and nobody receives it."""
    async with watch(elsewhere) as changes:
        model.say("one")
        await read_until(changes, "one")
        partials = admin[database]["partials"]
        old = partials.find_one({"event": {"$exists": True}})
        partials.insert_one({**old, "_id": {**old["_id"], "epoch": 0, "n": 99}})
        model.say(" two")
        received = await read_until(changes, " two")
        async with watch(elsewhere) as late:
            found = await read_until(late, "one two")
    assert {each.turn.epoch for each in received} == {running.epoch}
    assert len(spoken(found)) == 1
    model.end_answer()
    await running.result()


async def test_a_user_is_watched_from_the_next_turn_on(
    elsewhere: MongoSessionService,
    service: MongoSessionService,
    running: RunningTurn,
    model: SpokenModel,
) -> None:
    """Of the one that runs already no half sentence is received."""
    async with elsewhere.watch(
        IDS["app_name"], IDS["user_id"], partials=True
    ) as changes:
        model.say("first")
        model.end_answer()
        await running.result()
        await start(service, model)
        model.say("second")
        received = await read_until(changes, "second")
        model.end_answer()
        await read_until_end(changes)
    assert list(spoken(received).values()) == ["second"]


async def test_a_subscription_without_partials_receives_events_only(
    elsewhere: MongoSessionService, running: RunningTurn, model: SpokenModel
) -> None:
    """The deployment streams nothing else to it."""
    async with elsewhere.watch(*IDS.values()) as changes:
        model.say("one")
        model.end_answer()
        await running.result()
        kinds = {(await anext(changes)).kind}
        while not kinds & {"appended"}:
            kinds.add((await anext(changes)).kind)
    assert kinds <= {"snapshot", "appended"}


async def test_many_pieces_and_long_ones(
    elsewhere: MongoSessionService,
    running: RunningTurn,
    model: SpokenModel,
    admin: MongoClient,
    database: str,
) -> None:
    """4,000 pieces in a burst take few documents, and 20 MB at once take several."""
    long = "ab" * 10_000_000
    async with watch(elsewhere) as changes:
        model.say(*["word "] * 4_000)
        await read_until(changes, "word " * 4_000)
        assert admin[database]["partials"].count_documents({}) < 40
        model.say(long, thought=True)
        (text,) = spoken(await read_until(changes, long)).values()
    assert text == long
    await running.stop()


async def test_no_partial_is_missing_after_the_stream_was_lost(
    victim: MongoSessionService,
    database: str,
    running: RunningTurn,
    model: SpokenModel,
    admin: MongoClient,
) -> None:
    """Readers are let in again once the next stream is open, not before."""
    async with watch(victim) as changes:
        model.say("one ")
        received = await read_until(changes, "one ")
        streams: set[int] = set()
        await until(
            lambda: (
                streams.update(change_streams(admin, database, "partials")) or streams
            )
        )
        killed = {"killCursors": "$cmd.aggregate", "cursors": [*streams]}
        reading = asyncio.create_task(read_until(changes, "two three"))
        with failing(admin, "aggregate", times=1, errorCode=286) as wait_until_hit:
            await asyncio.to_thread(admin[database].command, killed)
            await asyncio.to_thread(wait_until_hit)
        await until(lambda: victim.feed_stats().resyncs)
        await until(lambda: changes._is_following)  # noqa: SLF001
        model.say("two ")
        said = {"event.content.parts.text": "two "}
        await until(lambda: admin[database].partials.find_one(said))
        model.say("three")
        received += await reading

    (text,) = spoken(received).values()
    assert text == "one two three"
    await running.stop()


@pytest.mark.parametrize("is_outage", [True, False])
async def test_no_piece_follows_one_that_is_left_out(
    is_outage: bool,  # noqa: FBT001
    mongodb_uri: str,
    database: str,
    elsewhere: MongoSessionService,
    admin: MongoClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If too much waits for MongoDB, or a hook fails, its event is received whole."""

    def refuse(value: Any, _: object) -> Any:
        if not is_outage and "left out" in str(value) and "three" not in str(value):
            raise ValueError
        return value

    model, early, late = SpokenModel(), "kept " * 1_000, "left out " * 1_000
    async with MongoSessionService(
        victim_uri(mongodb_uri),
        database=database,
        before_store=refuse,
        _limits=Limits(partial_unwritten_bytes=10_000),
    ) as service:
        await service.create_session(**IDS)
        await start(service, model)
        async with watch(elsewhere) as changes:
            model.say(early)
            received = await read_until(changes, early)
            kept = early * (1 + is_outage)
            with ExitStack() as failure:
                if is_outage:
                    wait = failure.enter_context(failing(admin, "insert", errorCode=91))
                    model.say(early)
                    await asyncio.to_thread(wait)
                model.say(late)
                await until(lambda: caplog.messages)
            if is_outage:
                received += await read_until(changes, kept.removeprefix(early))
            model.say("three")
            model.end_answer()
            received += await read_until_end(changes)
    stored = [each for each in received if each.kind == "appended"]
    assert [*spoken(received).values()] == [kept]
    assert stored[-1].event.content.parts[0].text == f"{kept}{late}three"


async def test_sealed_content_is_sealed_in_pieces(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Hooks are given what is said, as they are given events."""

    def turn_around(value: Any, _: object) -> Any:
        if isinstance(value, str):
            return value[::-1]
        if isinstance(value, dict):
            return {name: turn_around(each, None) for name, each in value.items()}
        if isinstance(value, list):
            return [turn_around(each, None) for each in value]
        return value

    model = SpokenModel()
    async with MongoSessionService(
        mongodb_uri,
        database=database,
        before_store=turn_around,
        after_load=turn_around,
    ) as service:
        await service.create_session(**IDS)
        running = await start(service, model)
        async with watch(service) as changes:
            model.say("secret")
            await read_until(changes, "secret")
        stored = list(admin[database]["partials"].find())
        assert "secret" not in str(stored)
        assert "terces" in str(stored)
        await running.stop()


@pytest.mark.limits(partial_seconds=3600)
async def test_a_service_that_closes_writes_the_end_at_once(
    service: MongoSessionService,
    running: RunningTurn,
    admin: MongoClient,
    database: str,
) -> None:
    """However long the pause between two writes is."""
    partials = admin[database]["partials"]
    await until(lambda: partials.count_documents({"status": "running"}))
    await running.stop()
    await service.close()
    assert partials.count_documents({"status": "stopped"}) == 1


async def test_the_death_of_a_turn_is_received(
    elsewhere: MongoSessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Once somebody finds it abandoned; until then it seems to run."""
    await service.create_session(**IDS)
    await abandon_turn(service, database, admin)
    (turn,) = await service.find_turns()
    document = partial_document(
        turn._replace(status="running"), 1, turn.since, None, NO_HOOKS
    )
    admin[database]["partials"].insert_one(document)
    async with watch(elsewhere) as changes:
        received = [await anext(changes) for _ in range(2)]
        async with service.turn(**IDS):
            pass
        while received[-1].kind != "turn" or received[-1].turn.status == "running":
            received.append(await anext(changes))
    assert received[-1].turn == turn
    assert [each.turn.status for each in received if each.kind == "turn"] == [
        "running",
        "abandoned",
    ]
