"""Command ``mongod``: a replica set for development, until Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from mongo_session_service.cli import options, terminal


@click.command()
@click.option(
    "--members",
    type=click.IntRange(1, 7),
    default=1,
    show_default=True,
    help="Number of members of the replica set.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data here, and use the same port again; without it the data is"
    " deleted at the end.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    show_default="27017, or any free port if that is taken",
    help="Port to listen on; 0 for any free port.",
)
@options.verbosity_options
def mongod(members: int, data_dir: Path | None, port: int | None) -> None:
    """Starts a MongoDB replica set on this machine, until Ctrl-C.

    It prints the URI, alone on stdout, with the database adk. For development only: it
    asks for no password, and listens on 127.0.0.1. Further members use the next ports.

    \b
    Example:
      mongo-session-service mongod --data-dir .mongodb
    """  # noqa: D301  \b is click's sign
    from mongo_session_service.embedded import EmbeddedReplicaSet, EmbeddedServerError
    from mongo_session_service.embedded.mongod import STANDARD_PORT, standard_port

    # Handled like Ctrl-C, so that MongoDB shuts down cleanly.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first = standard_port(data_dir, members) if port is None else port or None
    is_taken = port is None and standard_port(None, members) is None
    try:
        replica_set = EmbeddedReplicaSet(members, data_dir, port=first)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        with replica_set:
            uri = replica_set.uri.replace("/?", "/adk?")
            terminal.Screen().write(uri)
            kept = f"kept in {data_dir}" if data_dir else "deleted at the end"
            terminal.say(f"MongoDB is running; its data is {kept}. Ctrl-C stops it.")
            if is_taken:
                terminal.say(f"Port {STANDARD_PORT} is taken, so it uses another.")
            terminal.say(f"In another terminal: export MONGODB_URI='{uri}'")
            signal.pause()
    except EmbeddedServerError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        terminal.say("MongoDB has ended.")
