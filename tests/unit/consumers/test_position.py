"""A consumer's position, and what a replay in several parts has seen."""

from __future__ import annotations

from typing import Any

import bson
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.consumers.checkpoint import (
    Position,
    decode_position,
    encode_position,
)

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
def test_what_a_replay_reads_and_what_the_stream_tells_are_everything_once(
    log: list[tuple[dict[str, Any], Timestamp]], most: int, data: st.DataObject
) -> None:
    """However a replay is cut into parts, no event is told twice or not at all."""
    appended = {as_mongodb_orders(id_): (id_, at) for id_, at in log}
    clock = data.draw(TIMES)
    position = Position.at_beginning(clock)
    told = []
    while True:
        after = position.replayed and as_mongodb_orders(position.replayed)
        page = [
            id_
            for order, (id_, at) in sorted(appended.items())
            if at <= position.reading_at and (after is None or order > after)
        ][:most]
        if not page:
            break
        for id_ in page[: data.draw(st.integers(1, most))]:
            told.append(as_mongodb_orders(id_))
            position = position.after_replayed(id_)
        position = decode_position(encode_position(position))
        clock = max(clock, data.draw(TIMES))
        if data.draw(st.booleans()):
            position = position.reading_later(clock)
    begun = position.start
    position = position.after_replay()
    for order, (id_, at) in sorted(appended.items(), key=lambda each: each[1][1]):
        if at > begun:
            if not position.has_replayed(id_, at):
                told.append(order)
            position = position.after_change("mark", at)

    assert sorted(told) == sorted(appended)


def test_positions_survive_storage() -> None:
    """A position read back from BSON is the same, with a time or with a token."""
    id_ = event_id("a", "u", "s", 7)
    beginning = Position.at_beginning(Timestamp(5, 1)).after_replayed(id_)
    later = beginning.reading_later(Timestamp(6, 1)).after_replay()
    for position in (
        Position.at_end(Timestamp(5, 0)),
        beginning,
        later,
        later.after_change("mark", Timestamp(5, 2)),
        later.after_silence({"_data": "83"}).advanced_to(Timestamp(9, 0)),
    ):
        stored = bson.decode(bson.encode(encode_position(position)))

        assert decode_position(stored) == position


def test_segments_are_forgotten_once_the_stream_is_past_them() -> None:
    """A checkpoint does not carry a replay's parts for ever."""
    position = Position.at_beginning(Timestamp(5, 0)).after_replay()

    assert position.after_change("mark", Timestamp(5, 0)).segments
    assert not position.after_change("mark", Timestamp(5, 1)).segments


def test_silence_forgets_no_segments() -> None:
    """What a replay has seen may still come, after a stream that was silent."""
    position = Position.at_beginning(Timestamp(5, 0)).after_replay()

    assert position.after_silence({}).advanced_to(Timestamp(9, 0)).segments
