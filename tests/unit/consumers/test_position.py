"""A consumer's position, and the changes that follow it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import bson
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.consumers.checkpoint import Position

NAMES = st.text("aä~\U0001f600z", min_size=1, max_size=2)


def event_id(*parts: Any) -> dict[str, Any]:
    return dict(
        zip(("app_name", "user_id", "session_id", "revision"), parts, strict=True)
    )


IDS = st.builds(event_id, NAMES, NAMES, NAMES, st.integers(1, 3))
TIMES = st.integers(1, 9).map(lambda seconds: Timestamp(seconds, 0))


def as_mongodb_orders(id_: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        part.encode() if isinstance(part, str) else part for part in id_.values()
    )


@given(st.lists(st.tuples(IDS, TIMES), max_size=9), st.integers(1, 4), st.data())
def test_a_replay_and_the_changes_since_are_everything_once(
    log: list[tuple[dict[str, Any], Timestamp]], most: int, data: st.DataObject
) -> None:
    """However often a replay has to catch up, no event is missing or comes twice."""
    appended = {as_mongodb_orders(id_): (id_, at) for id_, at in log}
    by_time = sorted(appended.items(), key=lambda each: each[1][1])
    clock = data.draw(TIMES)
    position = Position.at_beginning(clock)
    received = []
    while position.is_replaying:
        if data.draw(st.booleans()):
            since, clock = position.start, max(clock, data.draw(TIMES))
            for order, (id_, at) in by_time:
                if since <= at <= clock:
                    position = position.after_change("mark", at)
                    assert not position.can_replay
                    if not position.follows_replayed(id_):
                        received.append(order)
            position = position.after_changes(clock)
        assert position.can_replay
        after = position.replayed and as_mongodb_orders(position.replayed)
        page = [
            id_
            for order, (id_, at) in sorted(appended.items())
            if at <= position.reached and (after is None or order > after)
        ][:most]
        if not page:
            position = position.after_replay()
        for id_ in page[: data.draw(st.integers(1, most))]:
            received.append(as_mongodb_orders(id_))
            position = position.after_replayed(id_)
    received += [order for order, (_, at) in by_time if at >= position.start]

    assert sorted(received) == sorted(appended)


def test_positions_survive_storage() -> None:
    """A position read back from BSON is the same, with a time or with a token."""
    id_ = event_id("a", "u", "s", 7)
    beginning = Position.at_beginning(Timestamp(5, 1)).after_replayed(id_)
    later = beginning.after_changes(Timestamp(6, 1))
    for position in (
        Position.at_end(Timestamp(5, 0)),
        beginning,
        later,
        later.after_change("mark", Timestamp(7, 2)),
        later.after_replay().after_silence({"_data": "83"}),
    ):
        stored = bson.decode(bson.encode(asdict(position)))

        assert Position(**stored) == position
