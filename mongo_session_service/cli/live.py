"""Command ``live``: a web page that shows a session, served to this machine."""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import click

from mongo_session_service.cli.options import (
    Place,
    Watched,
    connection_options,
    uri_argument,
    watched_options,
)
from mongo_session_service.cli.terminal import Screen, say

if TYPE_CHECKING:
    from mongo_session_service.model.records import SessionKey


@click.command()
@uri_argument
@watched_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="0 for any free port.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@connection_options
@click.pass_context
def live(
    context: click.Context,
    app: str | None,
    user: str | None,
    session: str | None,
    port: int,
    *,
    no_open: bool,
) -> None:
    """Serves a page that shows a session live, to this machine only.

    \b
    Example:
      mongo-session-service live --app my_app --user ada --session monday
    """  # noqa: D301
    watched = Watched.of(app, user, session)
    place = Place.of(context)
    asyncio.run(_live(place, watched, port, is_opened=not no_open))


async def _live(place: Place, watched: Watched, port: int, *, is_opened: bool) -> None:
    from uvicorn import Config, Server

    from mongo_session_service.http.sse import live_app

    def authorize(_: object, key: SessionKey) -> bool:
        return watched.holds(key)

    async with place.service() as service:
        app = live_app(service, authorize=authorize)
        with closing(_listening(port)) as listener:
            chosen = {k: v for k, v in watched._asdict().items() if v is not None}
            query = f"?{urlencode(chosen)}" if chosen else ""
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/{query}"
            Screen().write(url)
            say(f"Serving {watched.words(service.database_name)}. Ctrl-C stops it.")
            config = Config(app, log_level="warning", timeout_graceful_shutdown=1)
            serving = Server(config).serve(sockets=[listener])
            if is_opened:
                opening = asyncio.to_thread(webbrowser.open, url)
                await asyncio.gather(serving, opening)
            else:
                await serving


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise click.ClickException(
            f"Cannot listen on port {port}: {error.strerror}. Choose another with"
            " --port, or any free one with --port 0."
        ) from None
