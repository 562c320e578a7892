"""Making a replica set of a server that is in none."""

from __future__ import annotations

import time

from pymongo import MongoClient

from mongo_session_service.embedded.mongod import SET_NAME, Mongod


def initiate(client: MongoClient, mongod: Mongod, address: str) -> None:
    """Make it the only member of one, and wait until it is the primary."""
    members = [{"_id": 0, "host": address}]
    client.admin.command("replSetInitiate", {"_id": SET_NAME, "members": members})
    while not client.admin.command("hello")["isWritablePrimary"]:
        mongod.check()
        time.sleep(0.02)
