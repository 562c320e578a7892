"""Commands about what happens now: ``watch`` and ``live``."""

from __future__ import annotations

import os
import signal
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.inspect_commands import change_text
from mongo_session_service.model.wording import json_line

if TYPE_CHECKING:
    import socket

    from starlette.requests import Request


@click.command()
@options.uri_argument
@options.key_options
@options.option(
    "--after-revision N",
    "Begin with the session's events after this revision, however old.",
)
@options.option(
    "--partials",
    "Also running turns: their begin and end, and what they have said but not stored.",
)
@options.as_json
@options.with_address
async def watch(
    address: options.ServiceAddress,
    app: str | None,
    user: str | None,
    session: str | None,
    **how: Any,
) -> None:
    """Prints changes as they are committed.

    For one session, it begins with the state and ends when the session is deleted.
    For a user, an app or, without options, the database, it prints what happens from
    now on.

    \b
    Example:
      mongo-session-service watch --app my_app --json | jq .state_delta
    """
    options.check_key(app, user, session)
    if how["after_revision"] is not None and session is None:
        raise click.UsageError("--after-revision needs --session.")
    async with (
        address.open_service(app) as service,
        service.watch(app, user, session, **how) as changes,
    ):
        what = options.describe(app, user, session)
        terminal.print_remark(f"Watching {what} in {address.location}.")
        async for change in changes:
            if terminal.shared_options().json:
                click.echo(json_line(change.json_text))
            else:
                known = 3 - (app, user, session).count(None)
                terminal.show(change_text(change, known))


@click.command()
@options.uri_argument
@options.key_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@options.option(
    "--no-open",
    "Do not open a browser: other users can see the URL in its command line.",
)
@options.with_address
async def live(
    address: options.ServiceAddress,
    app: str | None,
    user: str | None,
    session: str | None,
    port: int,
    *,
    no_open: bool,
) -> None:
    """Serves a page that shows a session live, to this machine only.

    The URL it prints first has a random token. Without it, other users of the machine
    read nothing.

    \b
    Example:
      mongo-session-service live --app my_app --user ada --session monday
    """
    options.check_key(app, user, session)
    import asyncio
    import secrets
    import webbrowser

    from uvicorn import Config, Server

    from mongo_session_service.http import live_app

    async with address.open_service() as service:
        token = secrets.token_urlsafe()

        async def authorize_local(
            _: Request, *, session_id: str | None, action: str, **_user: str
        ) -> bool:
            is_watched = session in {None, session_id}
            # Of a single session, a fork could not be shown.
            may_fork = action == "fork" and session is None
            return is_watched and (action in {"list", "read", "stop"} or may_fork)

        page = live_app(
            service,
            authorize=authorize_local,
            token=token,
            app_name=app,
            user_id=user,
        )
        with closing(_listen(port)) as listener:
            names = {"app_name": app, "user_id": user, "session_id": session}
            chosen = {name: value for name, value in names.items() if value is not None}
            query = urlencode({"token": token, **chosen})
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/?{query}"
            click.echo(url)
            what = f"{options.describe(app, user, session)} in {address.location}"
            terminal.print_remark(f"Serving {what}. Ctrl-C stops it.")
            config = Config(page, log_level="warning", timeout_graceful_shutdown=1)
            server = Server(config)
            # Until the loop is closed. Uvicorn would repeat each signal at its end, so
            # that the second one's traceback is printed.
            server.capture_signals = nullcontext  # type: ignore[assignment]
            stop = partial(server.handle_exit, signal.SIGTERM, None)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop)
            opening = [] if no_open else [asyncio.to_thread(webbrowser.open, url)]
            await asyncio.gather(server.serve(sockets=[listener]), *opening)
    raise click.Abort


def _listen(port: int) -> socket.socket:
    import socket

    try:
        listener = socket.create_server(("127.0.0.1", port))
        # asyncio does this for sockets that it makes: else an answer takes 40 ms more.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        # Python adds the address to the error's own words.
        why = os.strerror(error.errno) if error.errno else error.strerror
        raise click.ClickException(
            f"Cannot listen on port {port}: {why}. Choose another with"
            " --port, or any free one with --port 0."
        ) from None
