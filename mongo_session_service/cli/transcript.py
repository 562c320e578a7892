"""Changes, events and sessions in words, for people who read a terminal."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from mongo_session_service.cli.terminal import (
    BAD,
    FAINT,
    GOOD,
    NOTE,
    WARNING,
    printable,
    styled,
)

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.changes.change import Change

_KIND_STYLES: Final = {
    "snapshot": "bold",
    "created": GOOD,
    "redacted": BAD,
    "state": WARNING,
    "updated": WARNING,
    "deleted": BAD,
}
_NAME: Final = 13
"""Columns of an author, so that what is said begins in one of its own."""
_UNITS: Final = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))

_LONG: Final = 500
"""Characters shown of a tool's arguments or answer, or of a value of state."""


def change_text(change: Change, scope_length: int) -> Text:
    """Describe a change: when, who, what was said and set, and its name.

    Its event and state are shown as the public view has them. The first
    ``scope_length`` parts of its key are known from what is watched.
    """
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
        name, style, said = event["author"], "bold", "  ".join(event_texts(event))
    author = styled(name, style)
    if said:
        author.pad_right(max(_NAME - author.cell_len, 0))
    delta = ", ".join(state_texts(shown.get("state", shown["state_delta"]), "="))
    number = "" if change.revision is None else f"r{change.revision}"
    about = filter(None, (change.kind if event else "", number, who))
    return Text("  ").join(
        part
        for part in (
            styled(moment(change.time), FAINT),
            author,
            styled(said),
            styled(delta, NOTE),
            styled(" ".join(about), FAINT),
        )
        if part
    )


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


def event_texts(event: dict[str, Any]) -> Iterator[str]:
    """Describe what an event says and does: texts whole, all else within bounds."""
    for part in event.get("content", {}).get("parts") or ():
        if text := _part_text(part):
            yield text if "text" in part else _bounded(text)
    code, message = event.get("errorCode", ""), event.get("errorMessage", "")
    if code or message:
        yield ": ".join(filter(None, (f"error {code}".rstrip(), message)))
    actions = event["actions"]
    if agent := actions.get("transferToAgent"):
        yield f"transfers to {agent}"
    if invocation := actions.get("rewindBeforeInvocationId"):
        yield f"rewinds to before invocation {invocation}"
    if compaction := actions.get("compaction"):
        content = compaction.get("compactedContent") or {}
        for part in content.get("parts") or ():
            yield f"(summary) {_part_text(part)}"


def state_texts(state: dict[str, Any], between: str = " = ") -> Iterator[str]:
    """Write keys and values of state, values as JSON."""
    for key, value in state.items():
        yield f"{printable(key)}{between}{_bounded(_json_text(value))}"


def _part_text(part: dict[str, Any]) -> str:
    match part:
        case {"text": text}:
            return f"{'(thinks) ' * part.get('thought', False)}{text}"
        case {"functionCall": call}:
            arguments = call.get("args", {}).items()
            shown = ", ".join(f"{key}={_json_text(each)}" for key, each in arguments)
            return f"{call.get('name')}({shown})"
        case {"functionResponse": response}:
            answer = response.get("response")
            if isinstance(answer, dict) and answer.keys() == {"result"}:
                answer = answer["result"]
            return f"{response.get('name')} → {_json_text(answer)}"
        case {"inlineData": blob}:
            size = len(base64.urlsafe_b64decode(blob.get("data", "")))
            return f"[{blob.get('mimeType')}, {size} bytes]"
        case {"fileData": file}:
            return f"[{file.get('fileUri')}]"
        case _:
            names = (re.sub("[A-Z]", r"_\g<0>", name).lower() for name in part)
            return f"[{', '.join(names)}]" if part else ""


def _bounded(text: str) -> str:
    """Cut a long text, and add how long it is."""
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]} … ({len(text):,} characters; --json prints all)"


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
