"""The options that choose what is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mongo_session_service.cli.terminal import printable

if TYPE_CHECKING:
    from mongo_session_service.model.records import SessionKey


class Watched(NamedTuple):
    """What the options --app, --user and --session choose."""

    app_name: str | None
    user_id: str | None
    session_id: str | None

    @classmethod
    def of(cls, app: str | None, user: str | None, session: str | None) -> Watched:
        """What they choose.

        Raises:
            UsageError: one is missing that another needs.
        """
        if session is not None and (app is None or user is None):
            raise click.UsageError("--session needs --app and --user.")
        if user is not None and app is None:
            raise click.UsageError("--user needs --app.")
        return cls(app, user, session)

    @property
    def chosen(self) -> list[str]:
        """The parts of the key that are given."""
        return [each for each in self if each is not None]

    def holds(self, key: SessionKey) -> bool:
        """Whether a session is among them."""
        return list(key[: len(self.chosen)]) == self.chosen

    def words(self, database: str) -> str:
        """What they choose, in words."""
        kind = ("everything", "app", "user", "session")[len(self.chosen)]
        name = printable(" ".join([kind, "/".join(self.chosen)])).rstrip()
        return f"{name} in database {database}"


def watched_options(command: Any) -> Any:
    """Gives a command the options --app, --user and --session."""
    for name in ("session", "user", "app"):
        command = click.option(f"--{name}", help=f"Only this {name}.")(command)
    return command
