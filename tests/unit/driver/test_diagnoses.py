"""What is said of a server that cannot be reached, and what to do about it."""

from __future__ import annotations

import pytest
from pymongo.errors import (
    ConfigurationError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mongo_session_service.driver.errors import translation

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

    said = str(translation(ServerSelectionTimeoutError(text)))

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
def test_a_refusal_is_what_it_is(error: PyMongoError, says: str) -> None:
    """Without a login, no privilege is said to lack."""
    said = str(translation(error))

    assert says in said
    assert ("lacks" in said) is ("lacks" in says)
