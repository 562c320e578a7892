"""What is said of a server that cannot be reached, and what to do about it."""

from __future__ import annotations

import pytest
from pymongo.errors import (
    ConfigurationError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mongo_session_service.storage.translation import translate_error

TOPOLOGY = ", Topology Description: <TopologyDescription id: 1, servers: []>"
TIMEOUTS = " (configured timeouts: socketTimeoutMS: 20000.0ms, connectTimeoutMS: 1.0ms)"
UNREACHABLE = "mongod is running there"
UNRESOLVED = "DNS does not know the host"


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ('No replica set members available for replica set name "rs0"', "standalone"),
        ('No replica set members match selector "Primary()"', "rs.initiate()"),
        ('No servers match selector "Primary()"', "rs.initiate()"),
        ("h:1: [Errno 111] Connect call failed ('h', 1)", UNREACHABLE),
        ("h:1: timed out", UNREACHABLE),
        ("No servers found yet", UNREACHABLE),
        ("h:1: [Errno -2] Name or service not known", UNRESOLVED),
        ("h:1: [Errno -3] Temporary failure in name resolution", UNRESOLVED),
        ("h:1: [Errno 8] nodename nor servname provided, or not known", UNRESOLVED),
        ("h:1: [Errno 11001] getaddrinfo failed", UNRESOLVED),
        ("SSL handshake failed: h:1: ", "TLS"),
    ],
)
def test_no_server_is_found(reason: str, hint: str) -> None:
    """Each reason has its own hint: only a standalone is asked to be none."""
    text = f"{reason}{TIMEOUTS}, Timeout: 0.8s{TOPOLOGY}"

    said = str(translate_error(ServerSelectionTimeoutError(text)))

    assert said.startswith(f"MongoDB is unavailable: {reason}, Timeout: 0.8s. ")
    assert hint in said
    assert ("standalone" in said) is (hint == "standalone")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            ConfigurationError("The DNS query name does not exist: _mongodb._tcp.h."),
            "DNS records for its host",
        ),
        (OperationFailure("command find requires authentication", 13), "got none"),
        (OperationFailure("not authorized on db to execute", 13), "lacks a privilege"),
        (OperationFailure("Authentication failed.", 18), "user name or password"),
        (OperationFailure("Could not find user", 11), "user name or password"),
    ],
)
def test_a_refused_login_is_told_from_a_missing_privilege(
    error: PyMongoError, says: str
) -> None:
    """Without a login, no privilege is said to lack."""
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
