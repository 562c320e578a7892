"""What other products say of themselves, as their documentation and users show it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from mongo_session_service.driver.products import check_product, refuse_others
from mongo_session_service.errors import ConfigurationError

BUILD = {"version": "7.0.0", "ok": 1.0}

COSMOS_DB = {
    "_t": "IsMasterResponse",
    "ok": 1,
    "ismaster": True,
    "maxMessageSizeBytes": 4194304,
    "maxWriteBatchSize": 1000,
    "minWireVersion": 0,
    "maxWireVersion": 2,
    "tags": {"region": "South India"},
    "hosts": ["one.documents.azure.com:10255", "two.documents.azure.com:10255"],
    "setName": "globaldb",
    "setVersion": 1,
    "primary": "one.documents.azure.com:10255",
    "me": "one.documents.azure.com:10255",
}
AZURE_DOCUMENTDB = {
    "isWritablePrimary": True,
    "msg": "isdbgrid",
    "setName": "globaldb",
    "maxWireVersion": 21,
    "internal": {"cosmos_versions": ["1.104-1", "1.105.0", "12.1-1"]},
}
OPEN_DOCUMENTDB = {
    "isWritablePrimary": True,
    "msg": "isdbgrid",
    "maxWireVersion": 21,
    "internal": {"documentdb_versions": ["0.113-0", "0.113.0"], "kind": ""},
}
AMAZON_DOCUMENTDB = {
    "ismaster": True,
    "setName": "rs0",
    "hosts": ["one.abc.eu-west-1.docdb.amazonaws.com:27017"],
    "me": "one.abc.eu-west-1.docdb.amazonaws.com:27017",
    "maxWireVersion": 13,
}
FERRETDB_1 = {**BUILD, "ferretdbVersion": "v1.24.0", "ferretdbFeatures": {}}
FERRETDB_2 = {**BUILD, "ferretdb": {"version": "v2.7.0", "package": "docker"}}
FERRETDB = {"isWritablePrimary": True, "maxWireVersion": 21, "setName": "rs0"}
MONGODB = {"setName": "rs0", "hosts": ["docdb.amazonaws.com.example:1"], "me": "a:1"}


@pytest.mark.parametrize(
    ("hello", "build", "says"),
    [
        (COSMOS_DB, BUILD, "Cosmos DB, .*transactions over several collections"),
        (AZURE_DOCUMENTDB, BUILD, "DocumentDB .*snapshots of several collections"),
        (OPEN_DOCUMENTDB, BUILD, "DocumentDB .*snapshots of several collections"),
        (AMAZON_DOCUMENTDB, BUILD, "Amazon DocumentDB, .*retryable writes"),
        (FERRETDB, FERRETDB_1, "FerretDB, .*transactions and change streams"),
        (FERRETDB, FERRETDB_2, "FerretDB, .*transactions and change streams"),
        (OPEN_DOCUMENTDB, FERRETDB_2, "FerretDB, .*transactions and change streams"),
    ],
)
async def test_what_is_not_mongodb_is_refused_with_what_it_lacks(
    hello: dict[str, Any], build: dict[str, Any], says: str
) -> None:
    """The message names product and feature, whichever version it claims to be."""
    with pytest.raises(ConfigurationError, match=says):
        check_product(hello, build)

    with pytest.raises(ConfigurationError, match=says):
        await refuse_others(client_that_says(build), hello)


@pytest.mark.parametrize("hello", [MONGODB, {"msg": "isdbgrid"}, {}])
async def test_what_may_be_mongodb_is_not_refused(hello: dict[str, Any]) -> None:
    """Nor is a server that does not tell how it was built."""
    check_product(hello, BUILD)

    await refuse_others(client_that_says(BUILD), hello)
    await refuse_others(client_that_says(OperationFailure("refused", 13)), hello)


async def test_mongodb_is_asked_nothing_more() -> None:
    """It tells its topology's version, which no other product has."""
    hello = {**COSMOS_DB, "topologyVersion": {"counter": 6}}

    check_product(hello, FERRETDB_2)
    await refuse_others(client_that_says(AssertionError("was asked")), hello)


def client_that_says(build: dict[str, Any] | Exception) -> Any:
    """A client whose server replies to ``buildInfo``."""

    async def command(name: str) -> dict[str, Any]:
        assert name == "buildInfo"
        if isinstance(build, Exception):
            raise build
        return build

    return SimpleNamespace(admin=SimpleNamespace(command=command))
