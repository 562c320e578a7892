"""Events needed since a compaction: the next summary is that of the whole log."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import compaction
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.adk.sessions import Session
from google.genai import types

from mongo_session_service.codec.compaction import Log, Trace, needed
from mongo_session_service.codec.documents import encode_event_fields

TURNS = 14


class Summarizer(BaseEventsSummarizer):
    """Sums up briefly, and remembers what."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        """A summary of them."""
        self.given.append([event.content.model_dump_json() for event in events])
        summary = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=types.Content(
                role="model", parts=[types.Part(text=f"{len(events)}")]
            ),
        )
        actions = EventActions(compaction=summary)
        return Event(
            author="user", invocation_id=Event.new_id(), actions=actions, id="summary"
        )


class Appending:
    """Stands for a session service, to which ADK appends a summary by itself."""

    async def append_event(self, session: Session, event: Event) -> Event:
        """Show it in the session."""
        session.events.append(event)
        return event


def _text(number: int) -> types.Part:
    return types.Part(text=f"{number} " * 99)


def turn(number: int) -> list[Event]:
    """A question and its answer, long enough to be worth a summary."""
    return [
        Event(
            id=f"{author}{number}",
            author=author,
            invocation_id=f"i{number}",
            timestamp=number + later,
            content=types.Content(
                role=role, parts=[types.Part(text=f"{number} " * 99)]
            ),
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=200 * number
            ),
        )
        for author, role, later in (("user", "user", 0.0), ("root", "model", 0.5))
    ]


async def summed_up(
    events: list[Event], settings: dict[str, Any]
) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """What is summed up after a turn, and the summaries."""
    summarizer = Summarizer()
    app = App(
        name="app",
        root_agent=LlmAgent(name="root", model="none"),
        events_compaction_config=EventsCompactionConfig(
            summarizer=summarizer, **settings
        ),
    )
    session = Session(id="s", app_name="app", user_id="u", events=[*events])
    made = compaction._run_compaction_for_sliding_window(  # noqa: SLF001
        app,
        session,
        Appending(),  # type: ignore[arg-type]
    )
    summaries = [event async for event in made]
    summaries += [each for each in session.events[len(events) :] if each not in events]
    return summarizer.given, [each.actions.model_dump() for each in summaries]


@pytest.mark.parametrize(
    ("settings", "overlap"),
    [
        ({"compaction_interval": 2, "overlap_size": 0}, 0),
        ({"compaction_interval": 2, "overlap_size": 1}, 1),
        ({"compaction_interval": 1, "overlap_size": 3}, 3),
        ({"token_threshold": 500, "event_retention_size": 3}, 0),
    ],
)
async def test_summaries_are_those_of_the_whole_log(
    settings: dict[str, Any], overlap: int
) -> None:
    """By turns and by tokens, time after time."""
    log: list[Event] = []
    least, count = len(log), 0
    for number in range(1, TURNS):
        fields = map(encode_event_fields, log)
        traces = [Trace.of(at, each) for at, each in enumerate(fields)]
        wanted = {*chain.from_iterable(needed(Log.of(traces), overlap))}
        loaded = [event for at, event in enumerate(log) if at in wanted]
        least = max(least, len(log) - len(loaded))
        added = turn(number)

        of_all = await summed_up([*log, *added], settings)

        assert await summed_up([*loaded, *added], settings) == of_all
        log += added
        for actions in of_all[1]:
            count += 1
            summary = EventActions.model_validate(actions)
            log.append(
                Event(
                    id=f"summary{number}",
                    author="user",
                    invocation_id=f"s{number}",
                    timestamp=number + 0.7,
                    actions=summary,
                )
            )
    assert count > 1
    assert least > TURNS / 3  # events were left out
