"""The kernel's verbs: queries and statements as data, on a replica set."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import StorageUnavailableError
from mongo_session_service.service import backends_of
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Delete,
    DuplicateError,
    Insert,
    LockedError,
    Query,
    RefusedError,
    Update,
)
from mongo_session_service.storage.transactions import Transaction

SOME = 7
LONG = "x" * 300_000
"""A text that is too long for a reply to be decoded as a whole."""
ALL: dict[str, Any] = {"_id": {"$gte": 0}}

pytestmark = pytest.mark.limits(page_events=3, removed_events=3, reply_documents=4)


@pytest.fixture
async def storage(service: MongoSessionService) -> Storage:
    """Of a service with a few documents among its leases, by number."""
    backend = await backends_of(service).backend()
    documents = [
        # Named as what a reply holds.
        {"_id": n, "text": LONG if n == 1 else "", "firstBatch": [{"nextBatch": [n]}]}
        for n in range(SOME)
    ]
    await backend.storage.commit(Insert("leases", documents))
    return backend.storage


async def numbers(storage: Storage) -> list[int]:
    (found,) = await storage.read(Query("leases", ALL, order=1, fields=("n",)))
    return [each["_id"] for each in found]


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("encoded", [True, False])
async def test_each_query_has_a_list_of_its_own(
    storage: Storage, *, text: bool, encoded: bool
) -> None:
    """Short and long replies, decoded or not, are split by their queries."""
    fields = () if text else ("n",)
    queries = [
        Query("leases", {"_id": {"$in": [1, 2]}}, order=1, fields=fields),
        Query("imports", {}),
        Query("leases", {"_id": 3}, fields=fields),
        Query("leases", ALL, order=-1, fields=fields),
    ]
    answer = await storage.read(*queries, encoded=encoded)
    alone = [(await storage.read(each, encoded=encoded)).lists[0] for each in queries]
    assert [*answer] == alone
    assert [len(each) for each in answer] == [2, 0, 1, SOME]


async def test_a_scan_passes_all_in_pages(storage: Storage) -> None:
    """Pages follow each other in either direction, each with what is read beside it."""
    for order in (1, -1):
        query = Query("leases", {"_id": {"$gte": 0, "$lt": 6}}, order=order)
        head = Query("leases", {"_id": 6}, fields=("n",))
        pages = [each async for each in storage.scan(query, beside=[head])]
        found = [each["_id"] for page in pages for each in page.documents]
        assert found == [*range(6)][::order]
        assert [page.is_last for page in pages] == [False, False, True]
        assert all(page.beside == ([{"_id": 6}],) for page in pages)


async def test_a_scan_passes_what_fills_a_reply_beside_it(storage: Storage) -> None:
    """It comes to its end, page by page."""
    query, others = Query("leases", {"_id": {"$gt": 4}}), Query("leases", ALL, limit=4)
    pages = [each async for each in storage.scan(query, beside=[others])]
    assert [len(each.documents) for each in pages] == [2]
    assert all(len(page.beside[0]) == 4 for page in pages)


async def test_a_batch_is_refused_as_a_whole(storage: Storage) -> None:
    """A statement that matches less than expected leaves nothing of its batch."""
    known = Update("leases", {"_id": 1}, {"$set": {"n": 1}}, expected=1)
    missing = Update("leases", {"_id": -1}, {"$set": {"n": 1}}, expected=1)
    with pytest.raises(RefusedError):
        await storage.commit(Insert("leases", [{"_id": 100}]), known, missing)
    with pytest.raises(DuplicateError):
        await storage.commit(
            Insert("leases", [{"_id": 100}]), Insert("leases", [{"_id": 0}])
        )
    for each in (missing, Delete("leases", {"_id": -1}, expected=1)):
        with pytest.raises(RefusedError):
            await storage.commit(each)
    assert await numbers(storage) == [*range(SOME)]
    assert await storage.find_one(Query("leases", {"n": 1})) is None


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_commit_counts_what_each_statement_matched(
    storage: Storage, *, atomic: bool
) -> None:
    """Of updates, deletes and inserts, together or alone."""
    statements = [
        Insert("leases", [{"_id": 100}, {"_id": 101}]),
        Update("leases", {"_id": 1}, {"$set": {"n": 1}}, expected=1),
        Update("leases", {"_id": 102}, {"$set": {"n": 1}}, upsert=True),
        Update("leases", {"_id": {"$gte": 100}}, {"$set": {"n": 2}}, many=True),
        Update("leases", {"_id": -1}, {"$set": {"n": 2}}),
        Delete("leases", {"n": 2}, many=True),
    ]
    assert await storage.commit(*statements, atomic=atomic) == [2, 1, 1, 3, 0, 3]
    assert await storage.commit(Delete("leases", {"_id": {"$lt": 2}}, many=True)) == [2]
    assert await storage.commit(Update("leases", {"_id": 2}, {"n": 5})) == [1]
    assert await storage.find_one(Query("leases", {"_id": 2})) == {"_id": 2, "n": 5}


async def test_a_locked_document_is_reported(storage: Storage) -> None:
    """A transaction that meets a lock as often as it may names the collection."""
    change = Update("leases", {"_id": 1}, {"$inc": {"n": 1}})
    locked, done = asyncio.Event(), asyncio.Event()

    async def hold(tx: Transaction) -> None:
        await tx.write(change)
        locked.set()
        await done.wait()

    holding = asyncio.create_task(storage.run(hold))
    await locked.wait()
    with pytest.raises(LockedError) as caught:
        await storage.commit(change, Delete("leases", {"_id": 2}), attempts=1)
    assert isinstance(caught.value, StorageUnavailableError)
    assert caught.value.collection.endswith("leases")
    done.set()
    await holding


async def test_a_removal_is_finished_by_the_next_call(storage: Storage) -> None:
    """It goes on where it was interrupted, and ends once, while its fence holds."""
    where = {"_id": {"$gt": 0}}
    fence = Update("leases", {"_id": 0}, {"$inc": {"steps": 1}})
    removal = storage.remove("leases", where, fence, [Delete("leases", {"_id": 0})])
    assert await anext(removal) == 3
    await removal.aclose()
    removal = storage.remove("leases", where, fence, [Delete("leases", {"_id": 0})])
    assert [each async for each in removal] == [3]
    assert await numbers(storage) == []
    with pytest.raises(RefusedError):
        await anext(storage.remove("leases", where, fence))


async def test_a_document_is_updated_and_returned(storage: Storage) -> None:
    """It is returned as it is then; None if none matches."""
    update = Update("leases", {"_id": 1}, {"$inc": {"n": 2}})
    found = await storage.find_and_update(update)
    assert found is not None
    assert (found["_id"], found["n"]) == (1, 2)
    update = Update("leases", {"_id": -1}, {"$inc": {"n": 2}})
    assert await storage.find_and_update(update) is None


async def test_a_write_is_finished_although_its_caller_is_cancelled(
    storage: Storage,
) -> None:
    """The cancellation is raised afterwards."""
    writing = asyncio.create_task(storage.commit(Delete("leases", ALL, many=True)))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await numbers(storage) == []
