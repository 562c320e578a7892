"""Products that speak MongoDB's protocol but are not MongoDB, and what they lack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pymongo.errors import PyMongoError

from mongo_session_service.errors import ConfigurationError

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Product:
    """A product, and the feature of MongoDB's that the service cannot do without."""

    name: str
    lacks: str
    is_it: Callable[[Reply, Reply], bool]
    """Tells it by its replies to ``hello`` and ``buildInfo``."""


def _runs_at(hello: Reply, *domains: str) -> bool:
    hosts = [*hello.get("hosts", ()), hello.get("me", ""), hello.get("primary", "")]
    return any(str(each).partition(":")[0].endswith(domains) for each in hosts)


def _is_ferretdb(_: Reply, build: Reply) -> bool:
    return "ferretdb" in build or "ferretdbVersion" in build


def _is_documentdb_extension(hello: Reply, _: Reply) -> bool:
    internal = hello.get("internal")
    return isinstance(internal, dict) and bool(
        internal.keys() & {"documentdb_versions", "cosmos_versions"}
    )


def _is_cosmos_db(hello: Reply, _: Reply) -> bool:
    at_azure = _runs_at(hello, ".cosmos.azure.com", ".documents.azure.com")
    return at_azure or hello.get("setName") == "globaldb"


def _is_amazon_documentdb(hello: Reply, _: Reply) -> bool:
    return _runs_at(hello, ".docdb.amazonaws.com", ".docdb-elastic.amazonaws.com")


_PRODUCTS: Final = (
    Product("FerretDB", "transactions and change streams", _is_ferretdb),
    Product(
        "DocumentDB (Azure's, or its open-source engine)",
        "snapshots of several collections at a cluster time",
        _is_documentdb_extension,
    ),
    Product(
        "Azure Cosmos DB",
        "transactions over several collections, and deletions in change streams",
        _is_cosmos_db,
    ),
    Product(
        "Amazon DocumentDB",
        "retryable writes and commits, so that lost answers would lose events",
        _is_amazon_documentdb,
    ),
)
"""Those that are built on another come before it."""


def is_mongodb(hello: Reply) -> bool:
    """Whether a server is MongoDB: no other tells a version of its topology."""
    return "topologyVersion" in hello


def check_product(hello: Reply, build: Reply) -> None:
    """Refuse what is known not to be MongoDB.

    Raises:
        ConfigurationError: it is such a product; the message says what it lacks.
    """
    for product in () if is_mongodb(hello) else _PRODUCTS:
        if product.is_it(hello, build):
            message = (
                f"This server is {product.name}, not MongoDB: it lacks"
                f" {product.lacks}. Use MongoDB 5.0 or newer, on Atlas or as a replica"
                " set."
            )
            raise ConfigurationError(message)


async def refuse_others(client: Any, hello: Reply) -> None:
    """Refuse a server that is known not to be MongoDB, which is asked nothing more.

    Raises:
        ConfigurationError: it is such a product; the message says what it lacks.
    """
    if is_mongodb(hello):
        return
    try:
        build = await client.admin.command("buildInfo")
    except PyMongoError:
        build = {}
    check_product(hello, build)
