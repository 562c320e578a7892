"""What the commands print: lines that fit a terminal and cannot harm it."""

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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.genai.types import Part

    from mongo_session_service.changes.change import Change
    from mongo_session_service.transfer.records import Totals

_STEPS: Final = 1000
"""Of a progress bar."""

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"

_KINDS: Final = {
    "snapshot": BOLD,
    "created": GREEN,
    "appended": "",
    "state": YELLOW,
    "deleted": RED,
}
_INDENT: Final = " " * 14
_UNITS: Final = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))

_ENOUGH: Final = 4
"""Characters that surely fill a column: some take none."""

# Beside control characters: what reorders or breaks lines, and halves of characters.
_UNSAFE: Final = {"Cc", "Cs", "Zl", "Zp", "Cf"}
_JOINERS: Final = "\u200c\u200d"  # parts of words and of emoji
_UNSAFE_IN_JSON: Final = re.compile(
    r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


class Text(NamedTuple):
    """A piece of a line, and its style as a terminal numbers it."""

    text: str
    style: str = ""


Line = Sequence[Text]


def printable(text: str) -> str:
    r"""A text on one line, with what a terminal would obey spelt out: ``\x1b``."""
    plain = re.sub(r"\s+", " ", text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(map(_printable_character, plain))


def _printable_character(character: str) -> str:
    is_safe = unicodedata.category(character) not in _UNSAFE or character in _JOINERS
    return character if is_safe else ascii(character)[1:-1]


def json_line(json_text: str) -> str:
    """JSON that means the same, with what a terminal would obey escaped."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def shortened(text: str, width: int | None) -> str:
    """A text in at most so many columns."""
    if width is None or (len(text) <= _ENOUGH * width and columns(text) <= width):
        return text
    taken, kept = 0, []
    for character in text:
        taken += _columns(character)
        if taken >= width:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""


def fitted(line: Line, width: int | None) -> Iterator[Text]:
    """A line in at most so many columns."""
    for piece in line:
        text = shortened(piece.text, width)
        yield piece._replace(text=text)
        if width is not None:
            if text != piece.text:
                return
            width -= columns(text)


def painted(line: Line, width: int | None, *, in_colour: bool) -> str:
    """A line as it is written to a terminal."""
    return "".join(
        f"\x1b[{style}m{text}\x1b[0m" if in_colour and style and text else text
        for text, style in fitted(line, width)
    ).rstrip()


def change_lines(change: Change, scope_length: int, width: int | None) -> list[Line]:
    """A change as one line or, if that is too wide, what was said and set below it.

    The first ``scope_length`` parts of its key are known from what is watched.
    """
    parts = [each for each in _key(change) if each is not None]
    who = "/".join(parts[min(scope_length, len(parts) - 1) :])
    revision = "" if change.revision is None else f"r{change.revision}"
    head = [
        Text(f"{moment(change.time):12}  ", DIM),
        Text(f"{change.kind:8}  ", _KINDS[change.kind]),
        Text(f"{revision:4} {printable(who)}"),
    ]
    said = ""
    if change.event is not None:
        head.append(Text(f"  {printable(change.event.author):13}", BOLD))
        said = printable(_said(change.event, width))
    state = change.state_delta if change.state is None else change.state
    changed = assignments(state, ", ", width)
    lines = [head]
    for piece in filter(lambda each: each.text, (Text(said), Text(changed, CYAN))):
        longer = [*lines[-1], Text("  "), piece]
        if width is None or sum(columns(each.text) for each in longer) <= width:
            lines[-1] = longer
        else:
            lines.append([Text(_INDENT), piece])
    return list(lines)


def _key(change: Change) -> tuple[str | None, ...]:
    return change.app_name, change.user_id, change.session_id


def moment(seconds: float) -> str:
    """A time of day, with the date unless that is today's; local."""
    local = datetime.fromtimestamp(seconds).astimezone()
    if local.date() == datetime.now().astimezone().date():
        return local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03}"
    return local.strftime("%Y-%m-%d %H:%M:%S")


def assignments(state: dict[str, Any], separator: str, width: int | None) -> str:
    """State as ``key=value``, values as JSON; no more of it than can be shown."""
    return _joined(
        (printable(f"{key}={_json(value, width)}") for key, value in state.items()),
        separator,
        width,
    )


def _json(value: object, width: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _cut(text, width)


def _cut(text: str, width: int | None) -> str:
    """More of a text than can be shown, and no more to go through than that."""
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


def table(header: Sequence[str], rows: Sequence[Sequence[Text]]) -> list[Line]:
    """Rows of cells below one another; the last cell of a row may be of any width."""
    cells = [[Text(name, BOLD) for name in header]]
    cells += [
        [each._replace(text=printable(each.text)) for each in row] for row in rows
    ]
    widths = [max(columns(row[at].text) for row in cells) for at in range(len(header))]
    return [
        [
            each._replace(text=each.text + " " * (width - columns(each.text) + 2))
            for each, width in zip(row, [*widths[:-1], 0], strict=True)
        ]
        for row in cells
    ]


class Screen:
    """Where lines are written: one at a time, at once."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty()
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.in_colour = is_terminal and not is_plain
        self._is_terminal = is_terminal

    @property
    def width(self) -> int | None:
        """How wide a line may be; as wide as it is where there is no terminal."""
        return shutil.get_terminal_size().columns if self._is_terminal else None

    def show(self, *lines: Line) -> None:
        """Write lines."""
        for line in lines:
            self.write(painted(line, self.width, in_colour=self.in_colour))

    def write(self, text: str) -> None:
        """Write a line as it is."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def say(text: str) -> None:
    """Tell the user something that is no output: on stderr."""
    click.echo(text, err=True)


def pace(done: int, total: int | None, share: float | None, elapsed: float) -> str:
    """How many events are done, how fast and, if a share of all, how long yet."""
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
    """A bar with rate and remaining time, told how many events are done by now.

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
        show_eta=False,
        item_show_func=shown,
    ) as bar:

        def advance(now: int) -> None:
            nonlocal done
            done = now
            part = share()
            bar.update((now if part is None else int(part * _STEPS)) - bar.pos)

        yield advance
