"""Which ports a replica set on this machine has."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from mongo_session_service.embedded import (
    EmbeddedReplicaSet,
    EmbeddedServerError,
    mongod,
)
from mongo_session_service.embedded.mongod import free_ports, ports_of, standard_port


@pytest.fixture
def pair() -> int:
    """A port that is free, as is the one after it."""
    while True:
        (port,) = free_ports(1)
        try:
            socket.create_server(("127.0.0.1", port + 1)).close()
        except OSError:
            continue
        return port


def test_ports_are_chosen_once(tmp_path: Path, pair: int) -> None:
    """Members have the ports that their data was made with, whatever is free later."""
    assert ports_of(tmp_path, 2, pair) == [pair, pair + 1]
    assert ports_of(tmp_path, 2, None) == [pair, pair + 1]
    assert ports_of(tmp_path, 2, pair) == [pair, pair + 1]
    with pytest.raises(EmbeddedServerError, match=f"on port {pair}, not {pair + 1}"):
        ports_of(tmp_path, 2, pair + 1)


def test_a_port_that_is_taken_is_named(tmp_path: Path, pair: int) -> None:
    """Whichever member's it is; nothing is remembered of what could not be had."""
    with (
        socket.create_server(("127.0.0.1", pair + 1)),
        pytest.raises(EmbeddedServerError, match=f"port {pair + 1}: .* in use; choose"),
    ):
        ports_of(tmp_path, 2, pair)

    assert list(tmp_path.iterdir()) == []


def test_kept_data_needs_its_port(tmp_path: Path, pair: int) -> None:
    """Another port would not do, so it says what is in the way."""
    ports_of(tmp_path, 1, pair)
    with (
        socket.create_server(("127.0.0.1", pair)),
        pytest.raises(EmbeddedServerError, match=f"port {pair}: .* in use; the data"),
    ):
        ports_of(tmp_path, 1, None)


def test_the_standard_port_is_for_new_data_and_if_free(
    tmp_path: Path, pair: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members have to find room there, or it is not taken."""
    monkeypatch.setattr(mongod, "STANDARD_PORT", pair)
    assert standard_port(None, 2) == standard_port(tmp_path, 2) == pair
    with socket.create_server(("127.0.0.1", pair + 1)):
        assert standard_port(None, 2) is None
        assert standard_port(None, 1) == pair
    (tmp_path / "ports.json").write_text(json.dumps([1, 2]))
    assert standard_port(tmp_path, 2) is None


@pytest.mark.parametrize("port", [0, -1, 65530, 65535])
def test_a_port_has_room_for_every_member(port: int) -> None:
    """The members' ports are from 1 to 65535."""
    with pytest.raises(ValueError, match=f"port must be 1 to 65529, not {port}"):
        EmbeddedReplicaSet(7, port=port)
