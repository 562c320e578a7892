"""Changes, events and sessions in words, for people who read a terminal."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from mongo_session_service.cli import styles
from mongo_session_service.cli.terminal import printable, styled, without_middle

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.changes.change import Change

_KIND_STYLES: Final = {
    "snapshot": "bold",
    "created": styles.GOOD,
    "redacted": styles.BAD,
    "state": styles.WARNING,
    "updated": styles.WARNING,
    "deleted": styles.BAD,
}
_INDENT: Final = " " * 10
_NAME: Final = 13
"""Columns of an author, so that what is said begins in one of its own."""
_UNITS: Final = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))

_CHARACTERS: Final = 4
"""Characters that surely fill one column; some take no column at all."""


def change_lines(change: Change, scope_length: int, width: int | None) -> list[Text]:
    """Describe a change on one line: who, what, then what was set, and its name.

    The last two go below if that is too wide. Its event and state are shown as the
    public view has them. The first ``scope_length`` parts of its key are known from
    what is watched.
    """
    from rich.cells import cell_len
    from rich.text import Text

    shown = json.loads(change.json_text)
    key = (change.app_name, change.user_id, change.session_id)
    parts = [each for each in key if each is not None]
    who = "/".join(parts[min(scope_length, len(parts) - 1) :])
    name, style, said = change.kind, _KIND_STYLES.get(change.kind, ""), ""
    if change.kind == "updated":
        expires = shown.get("expire_time")
        said = details_text(
            shown.get("title"),
            shown.get("labels") or {},
            None if expires is None else moment(expires),
        )
    if event := shown.get("event"):
        name, style, said = event["author"], "bold", _event_text(event, width)
    author = printable(name)
    gap = " " * max(_NAME - cell_len(author), 0)
    begins = Text.assemble((f"{author}{gap}  ", style), printable(said))
    begins.rstrip()
    delta = _state_text(shown.get("state", shown["state_delta"]), width)
    kind = change.kind if event else ""
    about = change_name(kind, change.revision, who, width)
    head = timed_text(change.time, begins)
    return fitting_lines(head, [styled(delta, styles.NOTE), about], width)


def timed_text(time: float, text: Text) -> Text:
    """Put the time before a text."""
    from rich.text import Text

    return Text.assemble((f"{moment(time)}  ", styles.FAINT), text)


def change_name(kind: str, revision: int | None, who: str, width: int | None) -> Text:
    """Name a change's kind, revision and session, which fit into a line."""
    number = "" if revision is None else f"r{revision}"
    parts = [*filter(None, (kind, number)), printable(who)]
    if width is not None:
        room = width - len(_INDENT) - len(" ".join(parts[:-1])) - 1
        parts[-1] = without_middle(parts[-1], max(room, 1))
    return styled(" ".join(parts), styles.FAINT)


def fitting_lines(head: Text, pieces: Iterable[Text], width: int | None) -> list[Text]:
    """Put pieces beside a heading, or below it where the line gets too wide."""
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
    """Format a local time of day, with the date unless that is today's.

    A time that no calendar has, as any client may store it, is a number of seconds.
    """
    try:
        local = datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):  # beyond the calendar, or no number
        return f"{seconds:g} s"
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")


def duration_text(seconds: float | None) -> str:
    """Round a duration to one unit; a dash for None."""
    if seconds is None:
        return "-"
    unit, length = next((u, n) for u, n in _UNITS if n == 1 or seconds >= 2 * n)
    return f"{max(0.0, seconds) / length:.0f} {unit}"


def details_text(title: str | None, labels: dict[str, str], expires: str | None) -> str:
    """Describe a session's title, labels and expiry, and say which it lacks."""
    shown = [
        "no title" if title is None else f"title {printable(title)!r}",
        f"labels {printable(labels_text(labels))}" if labels else "no labels",
        f"expires {expires}" if expires else "no expiry",
    ]
    return "; ".join(shown)


def labels_text(labels: dict[str, str]) -> str:
    """Write labels as the options do."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def action_texts(actions: dict[str, Any], width: int | None) -> Iterator[str]:
    """Describe an event's actions, but for its state delta."""
    if agent := actions.get("transferToAgent"):
        yield f"transfers to {agent}"
    if invocation := actions.get("rewindBeforeInvocationId"):
        yield f"rewinds to before invocation {invocation}"
    if compaction := actions.get("compaction"):
        content = compaction.get("compactedContent") or {}
        for part in content.get("parts") or ():
            yield f"(summary) {part_text(part, width)}"


def part_text(part: dict[str, Any], width: int | None) -> str:
    """Describe a part of an event's content."""
    match part:
        case {"text": text}:
            return f"{'(thinks) ' * part.get('thought', False)}{_cut(text, width)}"
        case {"functionCall": call}:
            arguments = _state_text(call.get("args", {}), width)
            return f"{call.get('name')}({arguments})"
        case {"functionResponse": response}:
            answer = response.get("response")
            if isinstance(answer, dict) and answer.keys() == {"result"}:
                answer = answer["result"]
            return f"{response.get('name')} → {_json_text(answer, width)}"
        case {"inlineData": blob}:
            size = len(base64.urlsafe_b64decode(blob.get("data", "")))
            return f"[{blob.get('mimeType')}, {size} bytes]"
        case {"fileData": file}:
            return f"[{file.get('fileUri')}]"
        case _:
            names = (re.sub("[A-Z]", r"_\g<0>", name).lower() for name in part)
            return f"[{', '.join(names)}]" if part else ""


def error_text(event: dict[str, Any]) -> str:
    """Describe an event's error; empty if it has none."""
    code, message = event.get("errorCode", ""), event.get("errorMessage", "")
    named = f"error {code}".rstrip() if code or message else ""
    return ": ".join(filter(None, (named, message)))


def _event_text(event: dict[str, Any], width: int | None) -> str:
    parts = event.get("content", {}).get("parts") or ()
    pieces = [
        *(part_text(part, width) for part in parts),
        error_text(event),
        *action_texts(event["actions"], width),
    ]
    return _joined(filter(None, pieces), "  ", width)


def _state_text(state: dict[str, Any], width: int | None) -> str:
    """Write state as ``key=value``, values as JSON."""
    pieces = (f"{key}={_json_text(value, width)}" for key, value in state.items())
    return _joined(map(printable, pieces), ", ", width)


def _json_text(value: object, width: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return _cut(text, width)


def _cut(text: str, width: int | None) -> str:
    """Keep the start of a text, which is more than can be shown, but not much more."""
    return text if width is None else text[: _CHARACTERS * width]


def _joined(pieces: Iterable[str], separator: str, width: int | None) -> str:
    shown, length = [], 0
    for piece in pieces:
        shown.append(piece)
        length += len(piece)
        if width is not None and length > _CHARACTERS * width:
            break
    return separator.join(shown)
