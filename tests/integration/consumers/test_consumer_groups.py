"""What a transactional run commits in one transaction, and what in its own."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError
from support.consumers import append, create, run

from mongo_session_service import (
    Change,
    Consumer,
    LeaseLostError,
    MongoSessionService,
    StorageError,
)
from mongo_session_service.storage.kernel import Storage

# Groups are not ended since they took long; failures wait for nothing.
pytestmark = pytest.mark.limits(group_seconds=60.0, handler_retry_seconds=0.0)


class Biller:
    """Writes a bill for each change, and notes what it was called with."""

    def __init__(self, consumer: Consumer, database: str, last: int) -> None:
        self.calls: list[int | None] = []
        self.transactions: list[int] = []
        self._consumer = consumer
        self._database = database
        self._last = last

    async def bill(self, change: Change, txn: Any) -> None:
        """Do what a consumer's handler does."""
        self.calls.append(change.revision)
        bills = txn.client[self._database].bills
        await bills.insert_one({"revision": change.revision}, session=txn)
        self.transactions.append(txn._server_session.transaction_id)  # noqa: SLF001
        if change.revision == self._last:
            await self._consumer.close()


def billed(admin: MongoClient, database: str) -> list[int]:
    return [each["revision"] for each in admin[database].bills.find().sort("_id")]


async def test_changes_of_one_page_share_a_transaction(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Handlers of changes read together write in one transaction."""
    await append(service, await create(service), 10)
    consumer = service.consumer("c")
    biller = Biller(consumer, database, last=10)
    await run(consumer, biller.bill, transactional=True)

    assert billed(admin, database) == biller.calls == list(range(1, 11))
    assert len(set(biller.transactions)) == 1


@pytest.mark.parametrize(
    "_bound",
    [
        pytest.param(each, marks=pytest.mark.limits(**each))
        for each in ({"group_seconds": 0.0}, {"group_bytes": 1}, {"group_changes": 1})
    ],
    ids=str,
)
async def test_a_transaction_is_bounded(
    _bound: object, service: MongoSessionService, database: str
) -> None:
    """No change joins one that has taken its time, or has its size."""
    await append(service, await create(service), 3)
    consumer = service.consumer("c")
    biller = Biller(consumer, database, last=3)
    await run(consumer, biller.bill, transactional=True)

    assert biller.calls == [1, 2, 3]
    assert len(set(biller.transactions)) == 3


async def test_after_a_failure_each_change_is_alone(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """The failing one alone uses up its attempts; the others are committed once."""
    await append(service, await create(service), 5)
    consumer = service.consumer("c")
    biller = Biller(consumer, database, last=5)

    async def handler(change: Change, txn: Any) -> None:
        await biller.bill(change, txn)
        if change.revision == 3:
            raise ValueError

    await run(consumer, handler, transactional=True, max_attempts=2)

    assert biller.calls == [1, 2, 3, 1, 2, 3, 3, 4, 5]
    assert billed(admin, database) == [1, 2, 4, 5]
    [letter] = [each async for each in consumer.dead_letters()]
    assert (letter.change.revision, letter.attempts) == (3, 2)


async def test_a_handler_that_ignores_an_abort_harms_no_other(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Its change becomes a dead letter, and those after it are committed."""
    admin[database].paid.insert_one({"_id": 1})
    await append(service, await create(service), 3)
    consumer = service.consumer("c")
    biller = Biller(consumer, database, last=3)

    async def handler(change: Change, txn: Any) -> None:
        if change.revision == 1:
            try:
                await txn.client[database].paid.insert_one({"_id": 1}, session=txn)
            except DuplicateKeyError:
                return
        await biller.bill(change, txn)

    await run(consumer, handler, transactional=True, max_attempts=1)

    assert billed(admin, database) == [2, 3]
    [letter] = [each async for each in consumer.dead_letters()]
    assert letter.change.revision == 1


async def test_a_group_committed_unnoticed_is_not_repeated(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a commit of unknown outcome had succeeded, its members change nothing more."""
    await append(service, await create(service), 3)
    consumer = service.consumer("c")
    biller = Biller(consumer, database, last=0)

    async def committing(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        await Storage.run(*arguments, **options)
        raise StorageError

    monkeypatch.setattr(Storage, "run", committing)
    with pytest.raises(LeaseLostError):
        await run(consumer, biller.bill, transactional=True)

    assert billed(admin, database) == [1, 2, 3]
