"""What every workload has, and the events they use."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from google.adk.events import Event, EventActions
from google.genai import types

from benchmark.contestants import Contestant
from benchmark.measure import Turn

_TEXT = (
    "The forecast for tomorrow is rain in the morning and sun from noon on, with 19 to"
    " 24 degrees and a light wind from the west. Take a coat if you leave before ten,"
    " and leave the umbrella at home if you do not."
)


class Check(Exception):  # noqa: N818  it is what failed
    """An answer was wrong."""


class CannotError(Exception):
    """A contestant cannot do this; the message says why."""


class Workload:
    """One thing that every contestant does; `unit` is "ms", "/s" or "MB"."""

    def __init__(self, name: str, unit: str, *, heavy: bool = False) -> None:
        self.name = name
        self.unit = unit
        self.heavy = heavy
        self.app = name.replace(" ", "_").replace(",", "").replace(":", "")

    def can(self, contestant: Contestant) -> bool:  # noqa: ARG002
        """Whether this makes sense for a contestant at all."""
        return True

    async def prepare(self, contestant: Contestant) -> None:
        """Store what the turns need."""

    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        """Measure for about `budget` seconds."""
        raise NotImplementedError

    async def check(self, contestant: Contestant) -> int:  # noqa: ARG002
        """Look at what was done; returns how many keys were lost.

        Raises:
            Check: it is wrong.
        """
        return 0

    async def close(self) -> None:
        """End what the workload has started."""


def make_event(number: int, delta: dict[str, Any] | None = None) -> Event:
    """An agent's ordinary answer."""
    return Event(
        author="weather_agent" if number % 2 else "user",
        invocation_id=f"invocation-{number // 2}",
        content=types.Content(role="model", parts=[types.Part(text=_TEXT)]),
        actions=EventActions(state_delta=delta or {}),
    )


@cache
def make_events(count: int) -> list[Event]:
    """A conversation, the same for everyone: its events end now."""
    events = [make_event(number, {"turn": number}) for number in range(count)]
    now = time.time()
    for number, event in enumerate(events, 1):
        event.timestamp = now - (count - number) / 1000
    return events
