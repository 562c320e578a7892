"""Where sessions are kept: a client or the URI of one, a database, and a prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mongo_session_service.codec.hooks import NO_HOOKS, Hooks
from mongo_session_service.errors import ConfigurationError

from . import concerns
from .compat import Driver
from .uri import DEFAULT_DATABASE, check_names, open_client


@dataclass(frozen=True, slots=True)
class Target:
    """Where sessions are kept: what a connection is opened to."""

    database: str
    prefix: str
    transactions: bool
    hooks: Hooks

    @classmethod
    def of(
        cls,
        uri: str | None,
        client: Any,
        *,
        database: str | None,
        prefix: str,
        transactions: bool,
        hooks: Hooks = NO_HOOKS,
    ) -> Target:
        """The target a service's arguments describe.

        Raises:
            ConfigurationError: not exactly one of ``uri`` and ``client`` is given, one
                of them or a name is unusable, the client has no transactions, or a hook
                is no plain function.
        """
        if (uri is None) == (client is None):
            given = "neither" if uri is None else "both"
            message = f"MongoSessionService takes a URI or a client; it got {given}."
            raise ConfigurationError(message)
        if not isinstance(database, str | None) or not isinstance(prefix, str):
            raise ConfigurationError("database and collection_prefix must be strings.")
        if not isinstance(transactions, bool):
            raise ConfigurationError("transactions must be True or False.")
        if uri is not None:
            probe = open_client(uri)
            database = database or probe.get_default_database(DEFAULT_DATABASE).name
        else:
            probe, database = client, database or DEFAULT_DATABASE
        if Driver.of(probe) is Driver.MOCK and transactions:
            message = "mongomock has no transactions: pass transactions=False with it."
            raise ConfigurationError(message)
        if Driver.of(probe) is not Driver.MOCK:
            concerns.check(probe)
        check_names(probe, database, prefix)
        hooks.check()
        return cls(database, prefix, transactions, hooks)
