"""Command ``erase``: removal of a user, an app or a session, after a question."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.terminal import printable
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from mongo_session_service.model.results import Erased
    from mongo_session_service.service import MongoSessionService

_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_COUNTED: Final = {
    "sessions": "session",
    "events": "event",
    "user_states": "user state",
    "app_states": "app state",
    "dead_letters": "dead letter",
    "checkpoints": "checkpoint",
}
"""What an erasure counts, and what one of it is called."""

_LEFT: Final = "What an interrupted erasure has left, which is not counted, goes now."


@click.group()
@options.place_options
def erase() -> None:
    """Erases a user, an app or a session, after saying what will go.

    It asks first; --yes answers for scripts. It removes a little at a time. If it is
    interrupted, run it again: it erases the rest. What is not stored counts as erased.

    \b
    Example:
      mongo-session-service erase user my_app ada
      mongo-session-service erase session my_app ada 5f0c --yes
    """  # noqa: D301  \b is click's sign


@erase.command()
@click.argument("app", metavar="APP")
@click.argument("user", metavar="USER")
@_yes
@options.as_json
@options.connected
async def user(
    place: options.Place, app: str, user: str, *, yes: bool, as_json: bool
) -> None:
    """Erases a user of an app.

    Sessions, events and state are removed, and what consumers have kept. Afterwards no
    collection contains the user's id. State of the app stays.

    \b
    Example:
      mongo-session-service erase user my_app ada
    """  # noqa: D301
    _check_answerable(yes=yes)
    async with place.service() as service:
        from mongo_session_service.admin import contents

        found = await contents.erasable(service, app, user)
        await _erase(
            *(place, service, (app, user), found),
            lambda: service.delete_user(app_name=app, user_id=user),
            yes=yes,
            as_json=as_json,
        )


@erase.command("app")
@click.argument("app", metavar="APP")
@_yes
@options.as_json
@options.connected
async def app_(place: options.Place, app: str, *, yes: bool, as_json: bool) -> None:
    """Erases an app, with all its users.

    Its state and the consumers of its changes are removed as well. Stop those consumers
    before: a running one ends with LeaseLostError.

    \b
    Example:
      mongo-session-service erase app my_app
    """  # noqa: D301
    _check_answerable(yes=yes)
    async with place.service() as service:
        from mongo_session_service.admin import contents

        found = await contents.erasable(service, app, None)
        await _erase(
            *(place, service, (app,), found),
            lambda: service.delete_app(app_name=app),
            yes=yes,
            as_json=as_json,
        )


@erase.command()
@options.session_arguments
@_yes
@options.as_json
@options.connected
async def session(
    place: options.Place, ids: tuple[str, str, str], *, yes: bool, as_json: bool
) -> None:
    """Erases a session and its events; state of its user and app stays.

    \b
    Example:
      mongo-session-service erase session my_app ada 5f0c
    """  # noqa: D301
    _check_answerable(yes=yes)
    async with place.service() as service:
        from mongo_session_service.admin import contents
        from mongo_session_service.model.records import session_key

        key = session_key(*ids)
        found = await contents.erasable_session(service, key)

        async def work() -> Erased:
            await service.delete_session(**key.id)
            return found or contents.NOTHING  # it counts nothing itself

        await _erase(*(place, service, ids, found), work, yes=yes, as_json=as_json)


def _check_answerable(*, yes: bool) -> None:
    """Require an answer, or somebody to ask.

    Raises:
        UsageError: there is no terminal.
    """
    if not yes and not sys.stdin.isatty():
        message = "It asks before it erases, but there is no terminal: add --yes."
        raise click.UsageError(message)


async def _erase(
    place: options.Place,
    service: MongoSessionService,
    ids: Sequence[str],
    found: Erased | None,
    work: Callable[[], Awaitable[Erased]],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Say what will go, ask, and erase it."""
    from mongo_session_service.admin import contents

    what, counts = _named(ids), _counts(found) if found else ""
    where = await place.where(service, None if counts else ids[0])
    if found is None:
        terminal.warn(f"Nothing is stored of {what} in {where}.")
        erased = contents.NOTHING
    else:
        if counts:
            tell = terminal.say if yes else terminal.warn
            tell(f"This erases {what} in {where}: {counts}.")
        else:
            terminal.say(f"Nothing is counted of {what} in {where}. {_LEFT}")
        if counts and not yes:
            _ask()
        with _resumable():
            erased = await work()
        gone = _counts(erased)
        terminal.say(f"Erased {gone}." if gone else "Done.")
    if as_json:
        terminal.Screen().write_json(asdict(erased))


def _named(ids: Sequence[str]) -> str:
    """An app, a user of it or a session of that, in words."""
    shown = [printable(each) for each in ids]
    match shown:
        case [app]:
            return f"app {app}"
        case [app, user]:
            return f"user {user} of app {app}"
        case _:
            return f"session {'/'.join(shown)}"


def _ask() -> None:
    """Ask for a yes.

    Raises:
        ClickException: the answer was no.
    """
    if not click.confirm("Erase it for ever?", err=True):
        raise click.ClickException("Nothing was erased.")


def _counts(erased: Erased) -> str:
    counts = asdict(erased)
    shown = [counted(counts[each], it) for each, it in _COUNTED.items() if counts[each]]
    return ", ".join(shown)


@contextmanager
def _resumable() -> Iterator[None]:
    """If it is interrupted, say what to do."""
    from asyncio import CancelledError

    try:
        yield
    except CancelledError:
        terminal.warn("Interrupted: a part may be erased. Run it again for the rest.")
        raise
