"""Sessions, events, sizes in words; commands ``sessions``, ``show``, ``storage``."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service import admin
from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.terminal import printable, styled
from mongo_session_service.model.wording import counted, duration_text

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from rich.text import Text

    from mongo_session_service.admin.sizes import CollectionSize
    from mongo_session_service.changes.change import Change
    from mongo_session_service.codec.event_record import EventRecord
    from mongo_session_service.model.metadata import Details
    from mongo_session_service.model.results import SessionSummary, TurnInfo
    from mongo_session_service.service import MongoSessionService
    from mongo_session_service.sessions.search import AppCount

    Log = AsyncIterator[tuple[EventRecord, Event | None]]

_PAGE: Final = 1000
"""Sessions read at once."""
_APPS_NAMED: Final = 10
"""Apps that the error of an unknown app lists at most."""
_SEALED: Final = "(sealed by before_store: only its application can read it)"
_UNREADABLE: Final = "(the installed release of ADK cannot read it)"

_KIND_STYLES: Final = {
    "snapshot": "bold",
    "created": terminal.GOOD,
    "redacted": terminal.BAD,
    "state": terminal.WARNING,
    "updated": terminal.WARNING,
    "deleted": terminal.BAD,
}
_TURN_STYLES: Final = {
    "running": terminal.GOOD,
    "stopping": terminal.WARNING,
    "abandoned": terminal.BAD,
}
_NAME: Final = 13
"""Columns of an author, so that texts begin in one of their own."""
_LONG: Final = 500
"""Characters shown of a tool's arguments or answer, or of a value of state."""


@click.command()
@options.uri_argument
@options.option("--app TEXT", "Only this app.")
@options.option("--user TEXT", "Only this user.", "user_id")
@options.details["title"]
@options.option(
    "--title-contains TEXT", "Only those with this in their title, in capitals or not."
)
@options.details["labels"]
@options.option(
    "--where KEY=JSON",
    "Only those whose own state has this value; repeatable.",
    multiple=True,
)
@options.option("--waiting", "Only those that wait for a person.")
@options.option(
    "--running", "Only those whose turn runs, in any process, or is abandoned."
)
@click.option(
    "--order",
    "order_by",
    type=click.Choice(["create_time", "update_time"]),
    help="By default create_time. update_time needs --user.",
)
@options.option("--oldest-first", "Begin with the oldest, not the newest.")
@options.option("--limit N", "How many at most; 0 for all.", default=50)
@options.as_json
@options.with_address
async def sessions(
    address: options.ServiceAddress,
    app: str | None,
    limit: int,
    *,
    running: bool,
    **filters: Any,
) -> None:
    """Lists an app's sessions, or without --app the apps.

    With --user alone, it lists the apps that have sessions or state of this user.
    It lists the sessions that have exactly this title, and all of these labels and
    values. For --title-contains, MongoDB reads the sessions of the app, or of --user.
    With --running, it lists turns, also of all apps. A turn is abandoned if its process
    has died: the session's next turn, or recover_turns(), answers the calls that it has
    left open.
    State is neither read nor shown. If the application seals state with before_store,
    --where compares with the sealed values.

    \b
    Example:
      mongo-session-service sessions
      mongo-session-service sessions --user ada
      mongo-session-service sessions --running
      mongo-session-service sessions --app my_app --label stage=test
      mongo-session-service sessions --app my_app --waiting
      mongo-session-service sessions --app my_app --where 'city="Turin"' --json
      mongo-session-service sessions --app my_app --user ada --order update_time
    """
    given = [name for name, value in filters.items() if value and name != "user_id"]
    if given and (app is None or running):
        name = given[0].removesuffix("s").removesuffix("_by").replace("_", "-")
        wrong = "cannot be given with --running" if running else "needs --app"
        raise click.UsageError(f"--{name} {wrong}.")
    async with address.open_service() as service:
        if running:
            await _show_running(address, service, app, filters["user_id"])
            return
        if app is None:
            await _show_apps(address, service, filters["user_id"])
            return
        wanted = {
            name: dict(value) if isinstance(value, tuple) and value else value or None
            for name, value in filters.items()
        }
        wanted["newest_first"] = not wanted.pop("oldest_first")
        wanted["order_by"] = wanted["order_by"] or "create_time"
        wanted["app_name"] = app
        await _show_sessions(address, service, wanted, limit)


async def iter_sessions(
    service: MongoSessionService, wanted: dict[str, Any], limit: int = 0
) -> AsyncIterator[SessionSummary]:
    """Find all sessions, or one more than a limit that is not 0."""
    size = min(limit + 1, _PAGE) if limit else _PAGE
    token = None
    while True:
        page = await service.find_sessions(
            **wanted, with_state=False, limit=size, page_token=token
        )
        for each in page.sessions:
            yield each
        if (token := page.next_page_token) is None:
            return


async def _show_apps(
    address: options.ServiceAddress, service: MongoSessionService, user: str | None
) -> None:
    whose = "" if user is None else f" of user {printable(user)}"
    terminal.show_rows(
        await admin.stored_contents.count_apps(service, user),
        _app_row,
        f"Apps{whose} in {address.location}:",
        f"There are no apps{whose} in {address.location}.",
    )


def _app_row(app: AppCount) -> dict[str, Text]:
    return {
        "APP": styled(app.app_name, "bold"),
        "USERS": styled(f"{app.users:,}"),
        "SESSIONS": styled(f"{app.sessions:,}"),
    }


async def _show_running(
    address: options.ServiceAddress,
    service: MongoSessionService,
    app: str | None,
    user: str | None,
) -> None:
    options.check_key(app, user)
    terminal.show_rows(
        await service.find_turns(app_name=app, user_id=user),
        _turn_row,
        f"Running turns in {address.location}:",
        f"No turn is running in {address.location}.",
    )


def _turn_row(turn: TurnInfo) -> dict[str, Text]:
    ago = duration_text(time.time() - turn.since.timestamp())
    return {
        "SESSION": styled(turn.session_id, "bold"),
        "USER": styled(turn.user_id),
        "APP": styled(turn.app_name),
        "STATUS": styled(turn.status, _TURN_STYLES[turn.status]),
        "SINCE": styled(f"{ago} ago"),
        "HOST": styled(turn.host),
        "WHY": styled(turn.reason or ""),
    }


async def _show_sessions(
    address: options.ServiceAddress,
    service: MongoSessionService,
    wanted: dict[str, Any],
    limit: int,
) -> None:
    is_json = terminal.shared_options().json
    rows, count = [], 0
    async for each in iter_sessions(service, wanted, limit):
        count += 1
        if limit and count > limit:
            break
        if is_json:
            terminal.show_json(each)
        else:
            rows.append(_session_row(each))
    app = printable(wanted["app_name"])
    if not count:
        apps = await admin.stored_contents.count_apps(service, None)
        names = [each.app_name for each in apps]
        if wanted["app_name"] not in names:
            terminal.warn(f"No session of app {app} is stored in {address.location}.")
            if 0 < len(names) <= _APPS_NAMED:
                shown = ", ".join(map(printable, names))
                terminal.warn(f"Apps with sessions: {shown}.")
        elif not is_json:
            terminal.print_remark(
                f"No such session of app {app} in {address.location}."
            )
    if rows:
        terminal.print_remark(f"Sessions of app {app}:")
        terminal.show(terminal.table(rows))
    if limit and count > limit:
        terminal.warn(f"There are more: --limit {limit * 2}, or 0 for all.")


def _session_row(summary: SessionSummary) -> dict[str, Text]:
    since = max(0.0, time.time() - summary.last_update_time)
    names = [each.name or each.call_id for each in summary.waiting[:3]]
    versions = f"{summary.branches} versions" if summary.branches > 1 else ""
    about = terminal.line(
        styled(summary.title or ""),
        styled(labels_text(summary.labels), terminal.NOTE),
        styled(versions, terminal.NOTE),
        styled(f"waits for {', '.join(names)}" if names else "", terminal.WARNING),
    )
    return {
        "TITLE AND LABELS": about,
        "SESSION": styled(summary.id, "bold"),
        "USER": styled(summary.user_id),
        "EVENTS": styled(f"{summary.event_count:,}"),
        "UPDATED": styled(f"{duration_text(since)} ago"),
    }


@click.command(short_help="Shows what the collections take on disk.")
@options.uri_argument
@options.option("--app TEXT", "Only this app.")
@options.as_json
@options.with_address
async def storage(address: options.ServiceAddress, app: str | None) -> None:
    """Shows what the collections take on disk.

    Bytes are those of MongoDB's files, compressed, and of an app its share by number;
    the average is that of a document before. MongoDB uses again what `prune` and `trim`
    free, and returns it to the disk when an administrator runs `compact`.

    \b
    Example:
      mongo-session-service storage --app my_app
    """
    async with address.open_service() as service:
        sizes = await admin.sizes.measure(service, app)
    terminal.show_rows(
        sizes, _size_row, "", f"Nothing is stored in {address.location}."
    )


def _size_row(size: CollectionSize) -> dict[str, Text]:
    from rich.filesize import decimal

    name, documents, *sizes = size
    columns = [each.replace("_", " ").upper() for each in size._fields]
    shown = [f"{documents:,}", *(decimal(it).replace("bytes", "B") for it in sizes)]
    cells = [styled(name, "bold"), *map(styled, shown)]
    return dict(zip(columns, cells, strict=True))


@click.command()
@options.session_arguments
@options.option("--events N", "Only the latest N events; 0 for none. All by default.")
@options.as_json
@options.with_address
async def show(
    address: options.ServiceAddress,
    app: str,
    user: str,
    session: str,
    events: int | None,
) -> None:
    """Shows a session: its details, its conversation, and its state.

    Credentials are left out. What an application seals with before_store is shown as
    sealed. With -v the ids of events are shown, too. With --json the first line is the
    session, and each other line an event.

    \b
    Example:
      mongo-session-service show my_app ada 5f0c --events 20
      mongo-session-service show my_app ada 5f0c --json | jq .event.content
    """
    from mongo_session_service.service import backends_of
    from mongo_session_service.turns.turn import find_last_turn

    async with address.open_with_key(app, user, session) as (service, key):
        summary = await admin.stored_contents.load_summary(service, key)
        turn = await find_last_turn(backends_of(service), key)
        after = summary.log_begins
        if events is not None:
            after = max(after, summary.revision - events)
        log = admin.stored_contents.iter_stored_events(service, summary, after)
        if terminal.shared_options().json:
            terminal.show_public_json(summary)
            async for record, event in log:
                terminal.show_public_json(_event_fields(record, event))
            return
        terminal.show(*_details(summary))
        if events and (left_out := after - summary.log_begins):
            click.echo(f"\n({counted(left_out, 'earlier event')})")
        invocation, sealed = None, 0
        async for record, event in _stops_last(log):
            before, invocation = invocation, event and event.invocation_id
            if before is None or invocation != before:
                click.echo()
            sealed += event is None and record.is_sealed
            _show_event(record, event)
    if turn is not None and turn.status != "ended":
        how = "cut off" if turn.is_cut_off else turn.status
        why = filter(None, (how, turn.reason or turn.error_type))
        click.echo()
        text = f"Last turn: {': '.join(map(printable, why))}"
        terminal.show(styled(text, terminal.WARNING))
    _show_state(summary)
    if sealed:
        found = counted(sealed, "event")
        terminal.warn(f"{found} sealed. Values of state are shown as stored.")


async def _stops_last(log: Log) -> Log:
    """Have a stop come after the words that it has cut off: it is stored before."""
    from mongo_session_service.codec.waiting_calls import ABORTED

    stops = []
    async for record, event in log:
        if event and event.error_code == ABORTED:
            stops.append((record, event))
            continue
        while stops and not (event and event.interrupted):
            yield stops.pop(0)
        yield record, event
    for each in stops:
        yield each


def _event_fields(stored: EventRecord, event: Event | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"revision": stored.revision, "event": event}
    if event is None:
        about = {"id": str(stored.id), "timestamp": stored.timestamp}
        fields |= {**about, "sealed": stored.is_sealed}
    return fields


def _show_event(stored: EventRecord, read: Event | None) -> None:
    from mongo_session_service.codec.public_view import public_view

    event = read and public_view({"event": read})["event"]
    terminal.show(_event_heading(stored, event["author"] if event else ""))
    if not event:
        unread = _SEALED if stored.is_sealed else _UNREADABLE
        terminal.show_indented(unread, terminal.WARNING)
        return
    for text in event_texts(event):
        terminal.show_indented(text)
    for text in state_texts(event["actions"].get("stateDelta") or {}):
        terminal.show_indented(text, terminal.NOTE)


def _show_state(summary: SessionSummary) -> None:
    from mongo_session_service.codec.public_view import public_view

    owners = {
        "": "the session",
        "user": f"user {summary.user_id}",
        "app": f"app {summary.app_name}",
    }
    scopes: dict[str, dict[str, Any]] = {name: {} for name in owners}
    state = public_view({"state": summary.state})["state"]
    for key in sorted(state):
        scope = key.partition(":")[0]
        scopes[scope if ":" in key and scope in scopes else ""][key] = state[key]
    for name, scope in scopes.items():
        if scope or not name:
            click.echo()
            terminal.show(styled(f"State of {owners[name]}", "bold"))
            for text in state_texts(scope) if scope else ["(empty)"]:
                terminal.show_indented(text)


def _details(summary: SessionSummary) -> Iterator[Text]:
    from rich.text import Text

    ago = duration_text(max(0.0, time.time() - summary.last_update_time))
    begins = summary.log_begins
    trimmed = f" (the first {begins:,} trimmed)" if begins else ""
    named = {
        "session": f"{summary.app_name}/{summary.user_id}/{summary.id}",
        "created": time_text(summary.create_time),
        "updated": f"{time_text(summary.last_update_time)}, {ago} ago",
        "events": f"{summary.event_count:,}{trimmed}",
        "labels": labels_text(summary.labels),
        "expires": expiry_text(summary),
        "versions": f"{summary.branches}" if summary.branches > 1 else "",
    }
    if summary.title:
        yield styled(summary.title, "bold")
    for name, value in named.items():
        if value:
            yield Text.assemble((f"{name:9}", terminal.FAINT), printable(value))


def expiry_text(summary: Details) -> str:
    """Describe when a session expires; empty for never."""
    if summary.expire_time is None:
        return ""
    text = time_text(summary.expire_time)
    if summary.ttl is not None:
        text += f" ({duration_text(summary.ttl)}, renewed by each event)"
    return text


def _event_heading(stored: EventRecord, author: str) -> Text:
    from rich.text import Text

    number = f"r{stored.revision:<4} {time_text(stored.timestamp)}  "
    name = f"  {printable(str(stored.id))}" * terminal.shared_options().verbose
    return Text.assemble(
        (number, terminal.FAINT), (printable(author), "bold"), (name, terminal.FAINT)
    )


def change_text(change: Change, scope_length: int) -> Text:
    """Describe a change: its time, author, text and state delta, and its name.

    Its event and state are shown as the public view has them. The first
    ``scope_length`` parts of its key are known from what is watched.
    """
    shown = json.loads(change.json_text)
    key = (change.app_name, change.user_id, change.session_id)
    parts = [each for each in key if each is not None]
    who = "/".join(parts[min(scope_length, len(parts) - 1) :])
    name, style = change.kind, _KIND_STYLES.get(change.kind, "")
    text: str = change.turn.status if change.turn else ""
    if change.kind == "updated":
        text = details_text(change)
    if event := shown.get("event"):
        name, style, text = event["author"], "bold", "  ".join(event_texts(event))
    author = styled(name, style)
    if text:
        author.pad_right(max(_NAME - author.cell_len, 0))
    delta = ", ".join(state_texts(shown.get("state", shown["state_delta"]), "="))
    number = "" if change.revision is None else f"r{change.revision}"
    about = filter(None, (change.kind if event else "", number, who))
    return terminal.line(
        styled(time_text(change.time), terminal.FAINT),
        author,
        styled(text),
        styled(delta, terminal.NOTE),
        styled(" ".join(about), terminal.FAINT),
    )


def time_text(seconds: float) -> str:
    """Format a local time of day, with the date unless that is today's.

    A time that no calendar has, as any client may store it, is a number of seconds.
    """
    try:
        local = datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):  # beyond the calendar, or no number
        return f"{seconds:g} s"
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")


def details_text(noted: Details) -> str:
    """Describe a session's title, labels and expiry, also those that it lacks."""
    title, labels, expires = noted.title, noted.labels, expiry_text(noted)
    shown = [
        "no title" if title is None else f"title {printable(title)!r}",
        f"labels {printable(labels_text(labels))}" if labels else "no labels",
        f"expires {expires}" if expires else "no expiry",
    ]
    return "; ".join(shown)


def labels_text(labels: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def event_texts(event: dict[str, Any]) -> Iterator[str]:
    """Describe an event's content and actions: texts whole, all else within bounds."""
    from mongo_session_service.codec.waiting_calls import ABORTED, STOPPED

    for part in _parts_of(event):
        if text := _part_text(part):
            yield text if "text" in part else _shortened(text)
    code, message = event.get("errorCode", ""), event.get("errorMessage", "")
    reason = (event.get("customMetadata") or {}).get("stop_reason")
    because = f": {reason}" if reason else ""
    if event.get("interrupted"):
        yield f"(cut off{because})"
    if (code, message) == (ABORTED, STOPPED):
        yield f"(stopped by the user{because})"
    elif code or message:
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


def _parts_of(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of an event's content, and what it says outside of it as texts."""
    parts = event.get("content", {}).get("parts") or []
    spoken = [
        event.get(f"{it}putTranscription", {}).get("text") for it in ("in", "out")
    ]
    said = [f"(spoken) {each}" for each in spoken if each]
    if "output" in event:
        said.append(f"(output) {_json_text(event['output'])}")
    return [*parts, *({"text": each} for each in said)]


def state_texts(state: dict[str, Any], between: str = " = ") -> Iterator[str]:
    """Write keys and values of state, values as JSON."""
    for key, value in state.items():
        yield f"{printable(key)}{between}{_shortened(_json_text(value))}"


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


def _shortened(text: str) -> str:
    """Cut a long text, and add how long it is."""
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]} … ({len(text):,} characters; --json prints all)"


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
