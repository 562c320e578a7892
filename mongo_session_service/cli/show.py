"""Command ``show``: a session's conversation, its state by scope, and its details."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.sessions import fields
from mongo_session_service.cli.terminal import printable, styled
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.admin.contents import StoredEvent
    from mongo_session_service.model.results import SessionSummary

_LONG: Final = 500
"""Characters shown of a tool's arguments or answer, or of a value of state."""
_INDENT: Final = 4
_SEALED: Final = "(sealed by before_store: only its application can read it)"
_UNREADABLE: Final = "(the installed release of ADK cannot read it)"


@click.command()
@options.session_arguments
@click.option(
    "--events",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only the latest N events; 0 for none. All by default.",
)
@options.as_json
@options.connected
async def show(
    place: options.Place,
    ids: tuple[str, str, str],
    events: int | None,
    *,
    as_json: bool,
) -> None:
    """Shows a session: its details, its conversation, and its state.

    Credentials are left out. What an application seals with before_store is shown as
    sealed. With --json the first line is the session, and each other line an event.

    \b
    Example:
      mongo-session-service show my_app ada 5f0c --events 20
      mongo-session-service show my_app ada 5f0c --json | jq .event.content
    """  # noqa: D301  \b is click's sign
    async with place.service(ids[0]) as service:
        from mongo_session_service.admin import contents
        from mongo_session_service.model.records import session_key

        key = session_key(*ids)
        summary = await contents.session(service, key)
        after = summary.log_begins
        if events is not None:
            after = max(after, summary.revision - events)
        log = contents.log(service, summary, after)
        page = _Json() if as_json else _Page()
        page.begin(summary, summary.revision - after)
        async for each in log:
            page.event(each)
        page.end(summary)


class _Json:
    """The session as lines of JSON."""

    def __init__(self) -> None:
        self._screen = terminal.Screen()

    def begin(self, summary: SessionSummary, _: int) -> None:
        """Write the session, with its state."""
        self._write(fields(summary))

    def event(self, stored: StoredEvent) -> None:
        """Write an event, or that it cannot be read."""
        shown: dict[str, Any] = {"revision": stored.revision, "event": stored.event}
        if stored.event is None:
            about = {"id": stored.id, "timestamp": stored.timestamp}
            shown |= {**about, "sealed": stored.is_sealed}
        self._write(shown)

    def end(self, _: SessionSummary) -> None:
        """Write no more."""

    def _write(self, shown: dict[str, Any]) -> None:
        from mongo_session_service.codec.public_view import json_text

        self._screen.write(terminal.json_line(json_text(shown)))


class _Page:
    """The session as text, which fills the terminal's width."""

    def __init__(self) -> None:
        self._screen = terminal.Screen()
        self._invocation: object = None
        self._sealed = 0

    def begin(self, summary: SessionSummary, events: int) -> None:
        """Write what the session is."""
        self._screen.show(*_details(summary))
        left_out = summary.event_count - events
        if left_out and events:
            self._screen.write(f"\n({counted(left_out, 'earlier event')})")

    def event(self, stored: StoredEvent) -> None:
        """Write what an event says and does; a blank line parts invocations."""
        from mongo_session_service.codec.public_view import public_view

        invocation = stored.event and stored.event.invocation_id
        if self._invocation is None or invocation != self._invocation:
            self._screen.write("")
        self._invocation = invocation
        if stored.event is None:
            self._sealed += stored.is_sealed
            lines = [_SEALED if stored.is_sealed else _UNREADABLE]
            self._screen.show(_heading(stored, ""))
            self._paragraphs(lines, "yellow")
            return
        event = public_view({"event": stored.event})["event"]
        self._screen.show(_heading(stored, event["author"]))
        self._paragraphs(list(_said(event)))
        if problem := _problem(event):
            self._paragraphs([problem], "red")
        delta = event["actions"].get("stateDelta") or {}
        self._paragraphs(list(_assignments(delta)), "cyan")

    def end(self, summary: SessionSummary) -> None:
        """Write the state, each scope by itself."""
        from mongo_session_service.codec.public_view import public_view

        state = public_view({"state": summary.state})["state"]
        for title, scope in _scopes(summary, dict(sorted(state.items()))):
            self._screen.write("")
            self._screen.show(styled(title, "bold"))
            self._paragraphs(list(_assignments(scope)) or ["(empty)"])
        if self._sealed:
            sealed = counted(self._sealed, "event")
            terminal.warn(f"{sealed} sealed. Values of state are shown as stored.")

    def _paragraphs(self, texts: list[str], style: str = "") -> None:
        for text in texts:
            for line in wrapped(text, self._screen.width):
                self._screen.show(styled_line(line, style))


def styled_line(line: str, style: str) -> Text:
    """An indented line, whose characters are safe to print."""
    from rich.text import Text

    return Text(" " * _INDENT + line, style, no_wrap=True)


def _details(summary: SessionSummary) -> Iterator[Text]:
    """A title, and what else is known of the session."""
    from rich.text import Text

    ago = terminal.duration(max(0.0, time.time() - summary.last_update_time))
    named = {
        "session": f"{summary.app_name}/{summary.user_id}/{summary.id}",
        "created": terminal.moment(summary.create_time),
        "updated": f"{terminal.moment(summary.last_update_time)}, {ago} ago",
        "events": f"{summary.event_count:,}{_trimmed(summary)}",
        "labels": terminal.labels_text(summary.labels),
        "expires": expiry_text(summary),
    }
    if summary.title:
        yield styled(summary.title, "bold")
    for name, value in named.items():
        if value:
            yield Text.assemble((f"{name:9}", "dim"), printable(value))


def _trimmed(summary: SessionSummary) -> str:
    """How many events were trimmed; empty for none."""
    return f" (the first {summary.log_begins:,} trimmed)" if summary.log_begins else ""


def expiry_text(summary: SessionSummary) -> str:
    """When a session expires; empty for never."""
    if summary.expire_time is None:
        return ""
    text = terminal.moment(summary.expire_time)
    if summary.ttl is not None:
        text += f" ({terminal.duration(summary.ttl)}, renewed by each event)"
    return text


def _heading(stored: StoredEvent, author: str) -> Text:
    from rich.text import Text

    when = f"{terminal.moment(stored.timestamp)}  "
    return Text.assemble(
        (f"r{stored.revision:<4} ", "dim"), (when, "dim"), (printable(author), "bold")
    )


def _said(event: dict[str, Any]) -> Iterator[str]:
    """What an event says and does: texts whole, all else within bounds."""
    for part in event.get("content", {}).get("parts") or ():
        text = terminal.part_text(part, None)
        if text:
            yield text if "text" in part else _bounded(text)
    yield from terminal.action_texts(event["actions"], None)


def _problem(event: dict[str, Any]) -> str:
    code, message = event.get("errorCode", ""), event.get("errorMessage", "")
    pieces = (f"error {code}".rstrip(), message) if code or message else ()
    return ": ".join(filter(None, pieces))


def _assignments(state: dict[str, Any]) -> Iterator[str]:
    for key, value in state.items():
        text = json.dumps(value, ensure_ascii=False)
        yield f"{printable(key)} = {_bounded(text)}"


def _bounded(text: str) -> str:
    """The start of a text, and how long it is if that is not all."""
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]} … ({len(text):,} characters; --json prints all)"


def _scopes(
    summary: SessionSummary, state: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The state of the session, of its user and of its app, as far as there is any."""
    own = {
        key: value
        for key, value in state.items()
        if not key.startswith(("app:", "user:"))
    }
    yield "State of the session", own
    for prefix, title in (
        ("user:", f"State of user {summary.user_id}"),
        ("app:", f"State of app {summary.app_name}"),
    ):
        scope = {key: it for key, it in state.items() if key.startswith(prefix)}
        if scope:
            yield title, scope


def wrapped(text: str, width: int | None) -> Iterator[str]:
    """The lines of a text, as they fit; safe to print, with their own indentation."""
    for line in text.splitlines():
        # All that is left of white space are blanks.
        safe = re.sub(r"\S+", lambda run: printable(run[0]), line.expandtabs(4))
        yield from [safe] if width is None else _folded(safe, width - _INDENT)


def _folded(line: str, width: int) -> Iterator[str]:
    from rich.console import Console
    from rich.text import Text

    room = max(width, _INDENT)
    for piece in Text(line).wrap(Console(width=room), room, no_wrap=False):
        yield piece.plain
