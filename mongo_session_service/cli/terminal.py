"""Terminal output: lines that fit a terminal and cannot harm it, and tables."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli.kept import said

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from mongo_session_service.changes.change import Change

_KINDS: Final = {
    "snapshot": "bold",
    "created": "green",
    "state": "yellow",
    "updated": "yellow",
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
    r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


SEE_WHERE: Final = "--debug shows where it comes from."
"""Added to what is said of an error in code that is not this package's."""


def printable(text: str) -> str:
    r"""A text on one line, with control characters escaped: ``\x1b``."""
    plain = re.sub(r"\s+", " ", text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(
        ascii(each)[1:-1]
        if unicodedata.category(each) in _UNSAFE and each not in _JOINERS
        else each
        for each in plain
    )


def json_line(json_text: str) -> str:
    """JSON that means the same, with control characters escaped."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def styled(value: object, style: str = "") -> Text:
    """A value in a style of rich, safe to print; it is cut rather than wrapped."""
    from rich.text import Text

    return Text(printable(str(value)), style, no_wrap=True, overflow="ellipsis")


def table(rows: Sequence[dict[str, Text]], *shrinking: str) -> Table:
    """Rows of named cells in aligned columns.

    The last column and the named ones shrink if needed, the widest first.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = list(rows[0])
    for name in names:
        shrinks = name in shrinking or name == names[-1]
        table.add_column(styled(name), no_wrap=not shrinks)
    for row in rows:
        table.add_row(*row.values())
    return table


class Screen:
    """Standard output: lines are written one at a time, at once."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._is_coloured = self._is_terminal and not is_plain

    @property
    def width(self) -> int | None:
        """Columns of a line; None where there is no terminal, so no limit."""
        return shutil.get_terminal_size().columns if self._is_terminal else None

    def show(self, *shown: RenderableType) -> None:
        """Write texts or tables."""
        for each in shown:
            for line in rendered(each, self.width, is_coloured=self._is_coloured):
                self.write(line)

    def write_json(self, fields: dict[str, Any]) -> None:
        """Write an object as a line of JSON."""
        self.write(json_line(json.dumps(fields, ensure_ascii=False)))

    def write(self, text: str) -> None:
        """Write a line as it is."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def rendered(
    shown: RenderableType, width: int | None, *, is_coloured: bool
) -> list[str]:
    """The lines that show a text or a table in so many columns."""
    from rich.console import Console

    # It only renders, because its writing hides a broken pipe.
    console = Console(
        width=sys.maxsize if width is None else width,
        height=1,
        force_terminal=is_coloured,
        color_system="standard" if is_coloured else None,
        no_color=False,
    )
    with console.capture() as captured:
        console.print(shown, no_wrap=True, overflow="ellipsis")
    return [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]


def say(text: str) -> None:
    """Tell the user something that is not output, on stderr; ``-q`` silences it."""
    if not is_told("quiet"):
        warn(text)


def warn(text: str) -> None:
    """Tell the user of a problem, on stderr, above a line of progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def is_told(flag: str) -> bool:
    """Whether the command that runs was given a flag, such as ``quiet``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(said(context, flag))


def change_lines(change: Change, scope_length: int, width: int | None) -> list[Text]:
    """A change as one line or, if that is too wide, what was said and set below it.

    Its event and state are shown as the public view has them. The first
    ``scope_length`` parts of its key are known from what is watched.
    """
    shown = json.loads(change.json_text)
    key = (change.app_name, change.user_id, change.session_id)
    parts = [each for each in key if each is not None]
    who = "/".join(parts[min(scope_length, len(parts) - 1) :])
    head = heading(change.time, change.kind, change.revision, who)
    said = ""
    if change.kind == "updated":
        expires = shown.get("expire_time")
        said = details_text(
            shown.get("title"),
            shown.get("labels") or {},
            None if expires is None else moment(expires),
        )
    if event := shown.get("event"):
        head.append(f"  {printable(event['author']):13}", "bold")
        said = _said(event, width)
    changed = _assignments(shown.get("state", shown["state_delta"]), width)
    return fitting(head, [styled(said), styled(changed, "cyan")], width)


def heading(time: float, kind: str, revision: int | None, who: str) -> Text:
    """What happened when, and to whom; columns that stand below each other."""
    from rich.text import Text

    number = "" if revision is None else f"r{revision}"
    return Text.assemble(
        (f"{moment(time):12}  ", "dim"),
        (f"{kind:8}  ", _KINDS.get(kind, "")),
        f"{number:4} {printable(who)}",
    )


def fitting(head: Text, pieces: Iterable[Text], width: int | None) -> list[Text]:
    """One line or, if that is too wide, a heading and its pieces below it."""
    from rich.text import Text

    lines = [head]
    for piece in filter(None, pieces):
        longer = Text("  ").join([lines[-1], piece])
        if width is None or longer.cell_len <= width:
            lines[-1] = longer
        else:
            lines.append(Text(_INDENT).append_text(piece))
    return lines


def moment(seconds: float) -> str:
    """A time of day, with the date unless that is today's; local."""
    local = datetime.fromtimestamp(seconds).astimezone()
    if local.date() == datetime.now().astimezone().date():
        return local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03}"
    return local.strftime("%Y-%m-%d %H:%M:%S")


def details_text(title: str | None, labels: dict[str, str], expires: str | None) -> str:
    """A session's title, labels and expiry in words, or that it has none."""
    shown = [
        "no title" if title is None else f"title {printable(title)!r}",
        f"labels {printable(labels_text(labels))}" if labels else "no labels",
        f"expires {expires}" if expires else "no expiry",
    ]
    return "; ".join(shown)


def labels_text(labels: dict[str, str]) -> str:
    """Labels as the options write them."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _assignments(state: dict[str, Any], width: int | None) -> str:
    """State as ``key=value``, values as JSON; not much more than can be shown."""
    pieces = (f"{key}={_json(value, width)}" for key, value in state.items())
    return _joined(map(printable, pieces), ", ", width)


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


def _said(event: dict[str, Any], width: int | None) -> str:
    """What an event says or does, in words."""
    pieces = [
        part_text(part, width) for part in event.get("content", {}).get("parts", ())
    ]
    code, message = event.get("errorCode", ""), event.get("errorMessage", "")
    if code or message:
        pieces.append(f"error {code}: {message}")
    pieces.extend(action_texts(event["actions"], width))
    return _joined(filter(None, pieces), "  ", width)


def action_texts(actions: dict[str, Any], width: int | None) -> Iterator[str]:
    """What an event's actions do beside setting state, in words."""
    if agent := actions.get("transferToAgent"):
        yield f"transfers to {agent}"
    if invocation := actions.get("rewindBeforeInvocationId"):
        yield f"rewinds to before invocation {invocation}"
    if compaction := actions.get("compaction"):
        content = compaction.get("compactedContent") or {}
        for part in content.get("parts") or ():
            yield f"(summary) {part_text(part, width)}"


def part_text(part: dict[str, Any], width: int | None) -> str:
    """A part of an event's content, in words."""
    match part:
        case {"text": text}:
            return f"{'(thinks) ' * part.get('thought', False)}{_cut(text, width)}"
        case {"functionCall": call}:
            arguments = _assignments(call.get("args", {}), width)
            return f"{call.get('name')}({arguments})"
        case {"functionResponse": response}:
            answer = response.get("response")
            if isinstance(answer, dict) and answer.keys() == {"result"}:
                answer = answer["result"]
            return f"{response.get('name')} → {_json(answer, width)}"
        case {"inlineData": blob}:
            size = len(base64.urlsafe_b64decode(blob.get("data", "")))
            return f"[{blob.get('mimeType')}, {size} bytes]"
        case {"fileData": file}:
            return f"[{file.get('fileUri')}]"
        case _:
            names = (re.sub("[A-Z]", r"_\g<0>", name).lower() for name in part)
            return f"[{', '.join(names)}]" if part else ""


def duration(seconds: float | None) -> str:
    """How long, roughly; a dash for None."""
    if seconds is None:
        return "-"
    unit, length = next((u, n) for u, n in _UNITS if n == 1 or seconds >= 2 * n)
    return f"{max(0.0, seconds) / length:.0f} {unit}"
