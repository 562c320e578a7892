"""Partial texts: what a model has said of an event that is not complete yet.

ADK yields such pieces as events with ``partial=True``, which have the id of the whole
event. Agents that run in parallel interleave theirs. Pieces that wait for a reader are
joined, so that they take no more memory than the text.
"""

from __future__ import annotations

from collections.abc import Hashable

from google.adk.events.event import Event
from google.genai import types


def text_kind(event: Event) -> Hashable | None:
    """Event id and kind (answer or thought) of a piece of text; None for others."""
    parts = (event.content and event.content.parts) or []
    if not event.partial or len(parts) != 1 or not parts[0].text:
        return None
    return event.id, bool(parts[0].thought)


class PartialText:
    """Pieces of one text, in the order in which they were said."""

    def __init__(self, first: Event) -> None:
        self.event_id = first.id
        self._first = first
        self._texts = [_text(first)]

    def add_piece(self, event: Event) -> None:
        """Add what was said next."""
        self._texts.append(_text(event))

    def joined(self) -> Event:
        """Return one partial event that says all of it."""
        if len(self._texts) == 1:
            return self._first
        text = "".join(self._texts)
        self._texts = [text]
        part = _text_part(self._first).model_copy(update={"text": text})
        content = types.Content(role=self._first.content.role, parts=[part])  # type: ignore[union-attr]
        self._first = self._first.model_copy(update={"content": content})
        return self._first


def _text_part(event: Event) -> types.Part:
    return event.content.parts[0]  # type: ignore[union-attr, index]


def _text(event: Event) -> str:
    return _text_part(event).text or ""


class EventInbox:
    """Events that wait for one reader of a running turn."""

    def __init__(self) -> None:
        self._waiting: list[Event | PartialText] = []
        self._texts: dict[Hashable, PartialText] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add_event(self, event: Event) -> None:
        """Add an event; a piece of text joins what waits of the same text."""
        kind = text_kind(event)
        if kind is None:
            self._waiting.append(event)
        elif kind in self._texts:
            self._texts[kind].add_piece(event)
        else:
            self._texts[kind] = text = PartialText(event)
            self._waiting.append(text)

    def drain(self) -> list[Event]:
        """Return all that waits, in order."""
        waiting, self._waiting, self._texts = self._waiting, [], {}
        return [each if isinstance(each, Event) else each.joined() for each in waiting]
