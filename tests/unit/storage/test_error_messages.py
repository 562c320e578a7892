"""The message for a server that cannot be reached: why, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from pymongo.errors import (
    AutoReconnect,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mongo_session_service.storage.failures import TimeLimitError, translate_error

UNREACHABLE = "mongod is running there"
UNRESOLVED = "DNS does not know the host"


class Client:
    """A client that knows servers, each with the text of its error, if it has one."""

    def __init__(self, *errors: str | None) -> None:
        self.delegate = self
        self.topology_description = self
        self.replica_set_name = "rs0"
        self._servers = {
            f"h{number}": Server((f"h{number}", 1), error)
            for number, error in enumerate(errors)
        }

    def has_writable_server(self) -> bool:
        return False

    def server_descriptions(self) -> dict[str, Server]:
        return self._servers


class Server(NamedTuple):
    address: tuple[str, int]
    error: str | None

    @property
    def server_type_name(self) -> str:
        return "Unknown" if self.error else "RSSecondary"


@pytest.mark.parametrize(
    ("errors", "parts"),
    [
        ([], ["no member of a replica set named 'rs0'", "standalone", "replicaSet="]),
        ([None, None], ["h1:1: it is not primary", "rs.initiate()"]),
        (["[Errno 111] x"], ["h0:1: Connection refused", UNREACHABLE]),
        (["[Errno 111] x"] * 5, ["h4:1: Connection refused. Check"]),
        (["anything new"], ["h0:1: it does not answer", UNREACHABLE]),
        (["[Errno -2] x"], [f"h0:1: {UNRESOLVED}"]),
        (["[Errno -3] x"], [UNRESOLVED]),
        (["[Errno 8] x"], [UNRESOLVED]),
        (["[Errno 11001] x"], [UNRESOLVED]),
        ([None, "[Errno 111] x"], ["h1:1: Connection refused"]),
    ],
)
def test_each_outage_has_its_reason_and_a_hint(
    errors: list[str | None], parts: list[str]
) -> None:
    """The reason names the servers, in words that no release of the driver changes."""
    error = ServerSelectionTimeoutError("the driver's words")

    message = str(translate_error(error, Client(*errors)))

    assert message.startswith("MongoDB is unavailable: ")
    assert [each for each in parts if each not in message] == []
    assert "driver's words" not in message
    assert "x" not in message.replace("example", "").split()


@pytest.mark.parametrize(
    "error", [AutoReconnect("secret"), TimeLimitError("it was late"), NetworkTimeout()]
)
def test_an_outage_is_one_whatever_noticed_it(error: PyMongoError) -> None:
    """What ran into a time limit while no server could be used is told why."""
    message = str(translate_error(error, Client("[Errno 111] x", "[Errno 111] x")))

    assert "h1:1: Connection refused. " in message
    assert UNREACHABLE in message
    assert "late" not in message


@pytest.mark.parametrize(
    "error", [AutoReconnect("secret"), NetworkTimeout("secret"), ExecutionTimeout("")]
)
def test_a_lost_connection_is_an_outage(error: PyMongoError) -> None:
    """Its message is whole, and holds nothing of the driver's."""
    message = str(translate_error(error))

    assert message == (
        "MongoDB is unavailable: the connection was lost, or there was no answer in"
        " time."
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OperationFailure("command find requires authentication", 13), "got none"),
        (OperationFailure("not authorized on db to execute", 13), "lacks a privilege"),
        (OperationFailure("Authentication failed.", 18), "user name or password"),
        (OperationFailure("Could not find user", 11), "user name or password"),
    ],
)
def test_a_refused_login_is_not_a_missing_privilege(
    error: PyMongoError, says: str
) -> None:
    """Without a login, no privilege is reported as missing."""
    said = str(translate_error(error))

    assert says in said
    assert ("lacks" in said) is ("lacks" in says)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ('insert: "events", lsid: { id: 1 }', "'insert' on 'db.events'"),
        ("listCollections: 1.0, cursor: {}", "'listCollections' on 'db'"),
        ("hunter2", "a command"),
    ],
)
def test_a_refusal_names_the_command_and_no_value(command: str, says: str) -> None:
    """Of the server's text nothing else is shown."""
    text = f"not authorized on db to execute command {{ {command}, x: 'hunter2' }}"

    said = str(translate_error(OperationFailure(text, 13, {"errmsg": text})))

    assert said.startswith(f"MongoDB refused {says}: the user lacks a privilege.")
    assert "hunter2" not in said
