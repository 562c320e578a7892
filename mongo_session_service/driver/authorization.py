"""Which privilege it was that a user lacked.

The server names the command it has refused, and of an aggregation only the first of its
collections. What the user holds, it tells to everyone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pymongo.errors import PyMongoError

from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.privileges import Refusal
from mongo_session_service.errors import NotAuthorizedError


@asynccontextmanager
async def naming_privileges(connection: Connection) -> AsyncIterator[None]:
    """Raise the driver's errors as this package's, naming privileges that lack."""
    try:
        with translated():
            yield
    except NotAuthorizedError as error:
        raise await _explained(connection, error) from None


async def _explained(
    connection: Connection, error: NotAuthorizedError
) -> NotAuthorizedError:
    if not isinstance(error.refusal, Refusal):
        return error
    asking = connection.client.admin.command("connectionStatus", showPrivileges=True)
    try:
        about = (await asking)["authInfo"]
    except PyMongoError:
        return error
    held = about["authenticatedUserPrivileges"]
    lacking = error.refusal.lacking(connection.prefix, held)
    if not lacking:
        return error
    users = ", ".join(repr(each["user"]) for each in about["authenticatedUsers"])
    options = f"--database {connection.database.name}"
    if connection.prefix:
        options += f" --prefix {connection.prefix}"
    message = (
        f"User {users or 'nobody'} lacks the privilege"
        f" {' and '.join(map(str, lacking))}. An administrator grants it with the"
        f" role that `mongo-session-service grants {options}` prints."
    )
    return NotAuthorizedError(message, preface=error.preface)
