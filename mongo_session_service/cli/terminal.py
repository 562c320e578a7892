"""Terminal output: lines that fit a terminal and cannot harm it, tables, progress."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.genai.types import Part
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from mongo_session_service.changes.change import Change
    from mongo_session_service.transfer.records import Totals

_STEPS: Final = 1000
"""Of a progress bar."""

_KINDS: Final = {
    "snapshot": "bold",
    "created": "green",
    "appended": "",
    "state": "yellow",
    "deleted": "red",
}
_INDENT: Final = " " * 14
_UNITS: Final = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))

_ENOUGH: Final = 4
"""Characters that surely fill one column; some take no column at all."""

# Beside control characters: what reorders or breaks lines, and halves of characters.
_UNSAFE: Final = {"Cc", "Cs", "Zl", "Zp", "Cf"}
_JOINERS: Final = "\u200c\u200d"  # parts of words and of emoji
_UNSAFE_IN_JSON: Final = re.compile(
    r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""A text on one line, with control characters escaped: ``\x1b``."""
    plain = re.sub(r"\s+", " ", text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(map(_printable_character, plain))


def _printable_character(character: str) -> str:
    is_safe = unicodedata.category(character) not in _UNSAFE or character in _JOINERS
    return character if is_safe else ascii(character)[1:-1]


def json_line(json_text: str) -> str:
    """JSON that means the same, with control characters escaped."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def styled(text: str, style: str = "") -> Text:
    """A text in a style of rich, safe to print; it is cut rather than wrapped."""
    from rich.text import Text

    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def table(header: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    """Rows of cells in aligned columns; the last column shrinks if needed."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in header:
        table.add_column(name, no_wrap=name != header[-1])
    for row in rows:
        table.add_row(*row)
    return table


class Screen:
    """Standard output: lines are written one at a time, at once."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty()
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._is_coloured = is_terminal and not is_plain
        self._is_terminal = is_terminal

    @property
    def width(self) -> int | None:
        """Columns of a line; None where there is no terminal, so no limit."""
        return shutil.get_terminal_size().columns if self._is_terminal else None

    def show(self, *shown: RenderableType) -> None:
        """Write texts or tables."""
        for each in shown:
            for line in rendered(each, self.width, is_coloured=self._is_coloured):
                self.write(line)

    def write(self, text: str) -> None:
        """Write a line as it is."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def rendered(
    shown: RenderableType, width: int | None, *, is_coloured: bool
) -> list[str]:
    """The lines that show a text or a table in so many columns."""
    console = _console(sys.maxsize if width is None else width, is_coloured)
    with console.capture() as captured:
        console.print(shown, no_wrap=True, overflow="ellipsis")
    return [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]


@lru_cache(maxsize=1)
def _console(width: int, is_coloured: bool) -> Console:  # noqa: FBT001
    """A console that only renders, because its writing hides a broken pipe."""
    from rich.console import Console

    return Console(
        width=width,
        height=1,
        force_terminal=is_coloured,
        color_system="standard" if is_coloured else None,
        no_color=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


def say(text: str) -> None:
    """Tell the user something that is not output: on stderr."""
    click.echo(text, err=True)


def change_lines(change: Change, scope_length: int, width: int | None) -> list[Text]:
    """A change as one line or, if that is too wide, what was said and set below it.

    The first ``scope_length`` parts of its key are known from what is watched.
    """
    from rich.text import Text

    parts = [each for each in _key(change) if each is not None]
    who = "/".join(parts[min(scope_length, len(parts) - 1) :])
    revision = "" if change.revision is None else f"r{change.revision}"
    head = Text.assemble(
        (f"{moment(change.time):12}  ", "dim"),
        (f"{change.kind:8}  ", _KINDS[change.kind]),
        f"{revision:4} {printable(who)}",
    )
    said = ""
    if change.event is not None:
        head.append(f"  {printable(change.event.author):13}", "bold")
        said = _said(change.event, width)
    state = change.state_delta if change.state is None else change.state
    changed = assignments(state, ", ", width)
    lines = [head]
    for piece in filter(None, (styled(said), styled(changed, "cyan"))):
        longer = Text("  ").join([lines[-1], piece])
        if width is None or longer.cell_len <= width:
            lines[-1] = longer
        else:
            lines.append(Text(_INDENT).append_text(piece))
    return lines


def _key(change: Change) -> tuple[str | None, ...]:
    return change.app_name, change.user_id, change.session_id


def moment(seconds: float) -> str:
    """A time of day, with the date unless that is today's; local."""
    local = datetime.fromtimestamp(seconds).astimezone()
    if local.date() == datetime.now().astimezone().date():
        return local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03}"
    return local.strftime("%Y-%m-%d %H:%M:%S")


def assignments(state: dict[str, Any], separator: str, width: int | None) -> str:
    """State as ``key=value``, values as JSON; not much more than can be shown."""
    return _joined(
        (printable(f"{key}={_json(value, width)}") for key, value in state.items()),
        separator,
        width,
    )


def _json(value: object, width: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _cut(text, width)


def _cut(text: str, width: int | None) -> str:
    """The start of a text: more than can be shown, but not much more."""
    return text if width is None else text[: _ENOUGH * width]


def _joined(pieces: Iterable[str], separator: str, width: int | None) -> str:
    shown, taken = [], 0
    for piece in pieces:
        shown.append(piece)
        taken += len(piece)
        if width is not None and taken > _ENOUGH * width:
            break
    return separator.join(shown)


def _said(event: Event, width: int | None) -> str:
    """What an event says or does, in words."""
    parts = event.content.parts if event.content and event.content.parts else []
    pieces = [_part(part, width) for part in parts]
    if event.error_code or event.error_message:
        pieces.append(f"error {event.error_code or ''}: {event.error_message or ''}")
    if event.actions.transfer_to_agent:
        pieces.append(f"transfers to {event.actions.transfer_to_agent}")
    return _joined(filter(None, pieces), "  ", width)


def _part(part: Part, width: int | None) -> str:
    if part.text is not None:
        text = _cut(part.text, width)
        return f"(thinks) {text}" if part.thought else text
    if call := part.function_call:
        return f"{call.name}({assignments(call.args or {}, ', ', width)})"
    if response := part.function_response:
        answer: object = response.response
        if isinstance(answer, dict) and answer.keys() == {"result"}:
            answer = answer["result"]
        return f"{response.name} → {_json(answer, width)}"
    if blob := part.inline_data:
        return f"[{blob.mime_type}, {len(blob.data or b'')} bytes]"
    if file := part.file_data:
        return f"[{file.file_uri}]"
    held = part.model_dump(exclude_none=True)
    return f"[{', '.join(held)}]" if held else ""


def duration(seconds: float | None) -> str:
    """How long, roughly; a dash for None."""
    if seconds is None:
        return "-"
    for unit, length in _UNITS:
        if seconds >= 2 * length or length == 1:
            return f"{max(0.0, seconds) / length:.0f} {unit}"
    raise AssertionError


def pace(done: int, total: int | None, share: float | None, elapsed: float) -> str:
    """Events done, their rate and, if the share of all is known, the time left."""
    so_far = counted(done, "event") if total is None else f"{done:,}/{total:,} events"
    shown = f"{so_far}, {done / max(elapsed, 1e-6):,.0f} events/s"
    if share:
        shown += f", {duration(elapsed * (1 - share) / share)} left"
    return shown


@contextmanager
def progress(
    label: str,
    totals: Totals | None,
    share_read: Callable[[], float | None] = lambda: None,
) -> Iterator[Callable[[int], None]]:
    """A bar with rate and remaining time; call it with the number of events done.

    Without totals the share of a file that was read tells the remaining time; without
    either, what is done is counted.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    started = time.monotonic()
    total = totals.events if totals else None
    done = 0

    def share() -> float | None:
        return share_read() if total is None else done / max(total, 1)

    def shown(_: object) -> str:
        return pace(done, total, share(), time.monotonic() - started)

    is_known = share() is not None
    with click.progressbar(
        None if is_known else iter(int, 1),
        length=_STEPS if is_known else None,
        label=label,
        file=sys.stderr,
        width=0,  # what the terminal has beside the words
        show_eta=False,
        item_show_func=shown,
    ) as bar:

        def advance(now: int) -> None:
            nonlocal done
            done = now
            part = share()
            bar.update((now if part is None else int(part * _STEPS)) - bar.pos)

        yield advance
