"""Making a replica set of servers that are in none yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

_PRIMARY: Final = 1
_SECONDARY: Final = 2


def initiate(name: str, hosts: list[str], settings: dict[str, int]) -> Iterator[None]:
    """Initiate a replica set, unless its data holds it.

    Each look at its members is one step; it ends once there is a primary and the others
    are secondaries. The first member calls for elections at once, rather than after a
    timeout.
    """
    members = [{"_id": index, "host": host} for index, host in enumerate(hosts)]
    config = {"_id": name, "members": members, "settings": settings}
    client: MongoClient[Any] = MongoClient(
        hosts[0], directConnection=True, serverSelectionTimeoutMS=2000
    )
    with client:
        with suppress(PyMongoError):  # it is initiated already
            client.admin.command("replSetInitiate", config)
        while True:
            with suppress(PyMongoError):
                status = client.admin.command("replSetGetStatus")
                states = sorted(member["state"] for member in status["members"])
                if states == [_PRIMARY] + [_SECONDARY] * (len(states) - 1):
                    return
                if _PRIMARY not in states:
                    client.admin.command("replSetStepUp")
            yield
