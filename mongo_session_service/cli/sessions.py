"""Command ``sessions``: the apps, or an app's sessions."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.terminal import printable, styled

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.model.results import SessionSummary
    from mongo_session_service.service import MongoSessionService

_FEW: Final = 50
"""Sessions shown by default."""


def _condition(text: str) -> tuple[str, Any]:
    """A state key, and the value it is to have.

    Raises:
        BadParameter: it is not ``KEY=JSON``.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=JSON, such as paid=true.")
    try:
        return key, json.loads(value)
    except ValueError:
        raise click.BadParameter(
            f"The value of {key!r} is not JSON; a text needs quotes:"
            f" '{key}={json.dumps(value)}'."
        ) from None


@click.command()
@options.uri_argument
@click.option("--app", help="Only this app.")
@click.option("--user", help="Only this user.")
@options.title
@options.labels
@click.option(
    "--where",
    type=_condition,
    multiple=True,
    metavar="KEY=JSON",
    help="Only those whose own state has this value; repeatable.",
)
@click.option(
    "--order",
    "order_by",
    type=click.Choice(["create_time", "update_time"]),
    help="By default create_time. update_time needs --user, or the index that"
    " `setup --index activity` creates.",
)
@click.option(
    "--oldest-first", is_flag=True, help="Begin with the oldest, not the newest."
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_FEW,
    show_default=True,
    metavar="N",
    help="How many at most; 0 for all.",
)
@options.as_json
@options.connected
async def sessions(
    place: options.Place,
    app: str | None,
    limit: int,
    *,
    as_json: bool,
    **filters: Any,
) -> None:
    """Lists an app's sessions, or without --app the apps.

    It lists the sessions that have exactly this title, and all of these labels and
    values. State is neither read nor shown. If the application seals state with
    before_store, --where compares with the sealed values.

    \b
    Example:
      mongo-session-service sessions
      mongo-session-service sessions --app my_app --label stage=test
      mongo-session-service sessions --app my_app --where 'city="Turin"' --json
      mongo-session-service sessions --app my_app --user ada --order update_time
    """  # noqa: D301  \b is click's sign
    given = [name for name, value in filters.items() if value]
    if app is None and given:
        name = given[0].removesuffix("s").removesuffix("_by").replace("_", "-")
        raise click.UsageError(f"--{name} needs --app.")
    async with place.service() as service:
        if app is None:
            await _show_apps(place, service, as_json=as_json)
            return
        wanted = {
            "app_name": app,
            "user_id": filters["user"],
            "title": filters["title"],
            "labels": dict(filters["labels"]) or None,
            "where": dict(filters["where"]) or None,
            "order_by": filters["order_by"] or "create_time",
            "newest_first": not filters["oldest_first"],
        }
        await _show_sessions(place, service, wanted, limit, as_json=as_json)


async def _show_apps(
    place: options.Place, service: MongoSessionService, *, as_json: bool
) -> None:
    from mongo_session_service.admin import contents

    screen = terminal.Screen()
    found = await contents.apps(service)
    if as_json:
        for each in found:
            screen.write_json(each._asdict())
        return
    where = await place.where(service)
    if not found:
        terminal.say(f"There are no apps in {where}.")
        return
    terminal.say(f"Apps in {where}:")
    rows = [
        {
            "APP": styled(each.app_name, "bold"),
            "USERS": styled(f"{each.users:,}"),
            "SESSIONS": styled(f"{each.sessions:,}"),
        }
        for each in found
    ]
    screen.show(terminal.table(rows, "APP"))


async def _show_sessions(
    place: options.Place,
    service: MongoSessionService,
    wanted: dict[str, Any],
    limit: int,
    *,
    as_json: bool,
) -> None:
    from mongo_session_service.admin import contents

    screen = terminal.Screen()
    # One more than is shown says whether there are more.
    found = contents.sessions(service, limit=limit + 1 if limit else None, **wanted)
    rows, count = [], 0
    async for each in found:
        count += 1
        if limit and count > limit:
            break
        if as_json:
            screen.write_json(fields(each))
        else:
            rows.append(_row(each))
    if not count and not as_json:
        where = await place.where(service, wanted["app_name"])
        terminal.say(f"No such session in {where}.")
        return
    if rows:
        terminal.say(f"Sessions of app {printable(wanted['app_name'])}:")
        screen.show(terminal.table(rows, "USER"))
    if limit and count > limit:
        terminal.warn(f"There are more: --limit {limit * 2}, or 0 for all.")


def fields(summary: SessionSummary) -> dict[str, Any]:
    """A session's fields in JSON: without state that was not read."""
    shown = summary.model_dump()
    if summary.state is None:
        del shown["state"]
    return shown


def _row(summary: SessionSummary) -> dict[str, Text]:
    since = max(0.0, time.time() - summary.last_update_time)
    about = styled(summary.title or "")
    if summary.labels:
        about.append("  " if summary.title else "")
        about.append_text(styled(terminal.labels_text(summary.labels), "cyan"))
    return {
        "SESSION": styled(summary.id, "bold"),
        "USER": styled(summary.user_id),
        "EVENTS": styled(f"{summary.event_count:,}"),
        "UPDATED": styled(f"{terminal.duration(since)} ago"),
        "TITLE AND LABELS": about,
    }
