"""Consumer fetcher: replays the event log if asked, then follows the change stream.

Each fetched change has the place after it. Nothing is saved here: the consumer
saves that place once the change is handled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeGuard

from bson.timestamp import Timestamp

from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import ChangeRecord, WatchedCollections
from mongo_session_service.changes.routing import Router, Scope
from mongo_session_service.codec.record import log_begins
from mongo_session_service.consumers.checkpoint import ConsumerSettings, LogPlace
from mongo_session_service.model.records import Document
from mongo_session_service.sessions import queries
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.snapshots import NO_TIME
from mongo_session_service.storage.statements import Query, SnapshotTooOldError
from mongo_session_service.storage.stream import Stream
from mongo_session_service.storage.tasks import Pace


class FetchedChange(NamedTuple):
    """A change that was read from MongoDB, and the place after it."""

    record: ChangeRecord
    place: LogPlace
    """To be saved once the change is handled."""


class Fetcher:
    """Fetches a consumer's changes after a place."""

    def __init__(
        self, storage: Storage, settings: ConsumerSettings, place: LogPlace
    ) -> None:
        self._storage = storage
        self._updates = settings.updates
        self._page_size = storage.limits.replay_page_events
        self.scope = Scope(settings.app_name)
        """The changes that its router delivers."""
        self.place = place
        """After everything fetched, and what was skipped since."""
        self._page: deque[Document] = deque()
        self._failure: Exception | None = None
        """The error that the next read raises, after the changes before it."""
        self._stream: Stream | None = None
        self._names = WatchedCollections.of_storage(storage)
        self._passed = place.passed
        """The mark up to which changes are skipped: the place is after them."""
        self._latest_token: Document | None = None
        """The resume token of the latest change, which is never saved."""
        self._read_until = NO_TIME
        """Everything that was committed until then has been read from the stream."""
        self._catching_up_to: Timestamp | None = None
        """Until then the stream is read for what has changed in the part that was
        replayed; then the replay goes on."""
        self._router: Router[Fetcher] = Router()
        self._router.attach(self)

    async def fetch_changes(self) -> list[FetchedChange]:
        """Fetch the next changes, none if there were none for about a second.

        They are from one reply of MongoDB: at most some hundreds, of 16 MB.
        """
        found: list[FetchedChange] = []
        pace = Pace()
        while not found or (self._has_more and len(found) < self._page_size):
            try:
                fetched = await self._fetch_one()
            except Exception as error:
                if not found:
                    raise
                self._failure = error
                break
            if fetched is not None:
                found.append(fetched)
            elif not self._has_more:
                break
            await pace.yield_to_loop()
        return found

    def has_fetched_until(self, cluster_time: Timestamp | None) -> TypeGuard[Timestamp]:
        if cluster_time is None or self.place.is_replaying:
            return False
        return cluster_time <= self._read_until

    @property
    def _has_more(self) -> bool:
        return bool(self._page or (self._stream and self._stream.has_more))

    async def _fetch_one(self) -> FetchedChange | None:
        """Fetch the next change; None if what was read is none for this consumer."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self.place.is_replaying and self._catching_up_to is None:
            if self.place.can_replay:
                return await self._replay_one()
            self._catching_up_to = await self._storage.latest_time(patient=True)
        if self._stream is None:
            pipeline = decoder.pipeline(self._storage, self.scope.app_name)
            self._stream = decoder.follow(self._storage, pipeline, self.place.start)
        change, token = await self._stream.next_change(), self._stream.token
        if change is not None:
            time = change["clusterTime"]
            self._read_until = Timestamp(time.time, time.inc - 1)  # others may have it
        elif token:
            self._read_until = decoder.time_of_token(token)
        if self._catching_up_to and self._catching_up_to <= self._read_until:
            await self.close_change_stream()
            self.place = self.place.after_changes(self._catching_up_to)
            self._stream = self._passed = self._catching_up_to = None
            return None  # a change after it is read again
        if change is not None:
            return self._fetched_change(change)
        if token and token != self._latest_token and self._passed is None:
            self.place = replace(self.place, start=token, passed=None)
        return None

    def _fetched_change(self, change: Document) -> FetchedChange | None:
        """Return the change that an event of the stream results in, if any."""
        cluster_time, mark = change["clusterTime"], decoder.mark_of(change)
        self._latest_token = change["_id"]
        decoded = decoder.decode_change(change, self._names, self._storage.hooks)
        is_known = self._was_passed(mark, cluster_time)
        if not is_known:
            self.place = self.place.after_change(mark, cluster_time)
            is_appended = decoded is not None and decoded.kind == "appended"
            if is_appended and self.place.follows_replayed(
                change["documentKey"]["_id"]
            ):
                return None
        if decoded is None:
            return None
        for _, record in self._router.route(decoded):
            if not is_known and (self._updates or record.kind != "updated"):
                return FetchedChange(record, self.place)
        return None

    def _was_passed(self, mark: str, cluster_time: Timestamp) -> bool:
        """Whether a change of the place's own time is up to that place."""
        if self._passed is None or cluster_time != self.place.start:
            self._passed = None
            return False
        if mark == self._passed:
            self._passed = None
        return True

    async def _replay_one(self) -> FetchedChange | None:
        """Return the log's next event; None at its end, where the stream takes over."""
        if not self._page:
            try:
                page = await self._read_page()
            except SnapshotTooOldError:
                self._catching_up_to = await self._storage.latest_time(patient=True)
                return None
            if not page:
                self.place = replace(self.place, is_replaying=False, replayed=None)
                return None
            self._page.extend(page)
        document = self._page[0]
        id_, begins = document["_id"], log_begins(document)
        if begins:
            # What a trim is about to remove is passed over.
            id_ = {**id_, "revision": begins}
            record = await load_trimmed(self._storage, document)
        else:
            # None if another tool wrote the document.
            record = decoder.decode_appended(document, self._storage.hooks)
        self._page.popleft()
        while begins and self._page and _is_trimmed_event(self._page[0]["_id"], id_):
            self._page.popleft()
        self.place = replace(self.place, replayed=id_)
        return FetchedChange(record, self.place) if record else None

    async def _read_page(self) -> list[Document]:
        """Read more of the log, as of the replay's time."""
        last = self.place.replayed
        events = queries.app_documents_filter(self.scope.app_name, last)
        if last is not None:
            # The session may have been trimmed beyond what was replayed of it.
            events = {"$or": [{"_id": {**last, "revision": 0}}, events]}
        query = Query("events", events, order=1, limit=self._page_size)
        (page,) = await self._storage.read(
            query, as_of=self.place.reached, whole=False, patient=True
        )
        return [each for each in page if not _was_replayed(each, last)]

    async def close_change_stream(self) -> None:
        if self._stream is not None:
            await self._stream.close_cursor()


async def load_trimmed(storage: Storage, document: Document) -> ChangeRecord | None:
    """Load the state that begins a log that was trimmed."""
    id_ = document["_id"]
    wanted = queries.shared_state_queries(id_["app_name"], id_["user_id"])
    shared = [*chain.from_iterable(await storage.read(*wanted, patient=True))]
    return decoder.decode_trimmed(document, shared, storage.hooks)


def _was_replayed(document: Document, last: Document | None) -> bool:
    """Whether a document precedes the log of the session that is being replayed.

    It does not if the log was cut after what was replayed last.
    """
    id_ = document["_id"]
    if last is None or id_ != {**last, "revision": 0}:
        return False
    revision: int = last["revision"]
    return log_begins(document) <= revision


def _is_trimmed_event(id_: Document, place: dict[str, int]) -> bool:
    """Whether an event of the same session is not after a place in the log."""
    revision, last = id_["revision"], place["revision"]
    return revision <= last and id_ == {**place, "revision": revision}
