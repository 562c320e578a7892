"""Limits: the sizes, counts and intervals that one service works with.

A service takes them as the private argument ``_limits``, so that a test may make a page
of two events or a lease of a tenth of a second. Nobody else sets them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes and counts that one service may hold at once, and how long it waits."""

    queued_writes: int = 4096
    """Writes that are encoded and wait."""
    queued_bytes: int = 64_000_000
    """Bytes of these writes."""
    write_seconds: float = 60.0
    """Seconds after which a write is given up, unless the URI's ``timeoutMS`` is less;
    an election takes up to 12."""
    lease_seconds: float = 6.0
    """Seconds without a renewal after which a turn or a consumer's name is free."""
    lease_renewal_seconds: float = 1.5
    """Seconds after which a lease is renewed that nothing else has renewed."""
    consumer_poll_seconds: float = 0.5
    """Seconds between attempts of a reader that waits for a consumer's name."""
    consumer_batch_seconds: float = 0.1
    """Seconds of handlers' work between two commits; a commit takes milliseconds."""
    consumer_idle_save_seconds: float = 15.0
    """Seconds after which an idle stream's resume token is saved, before it expires."""
    group_seconds: float = 1.0
    """Seconds after which no change joins a transaction of handlers: it holds locks."""
    group_changes: int = 100
    """Changes that handlers share a transaction for."""
    group_bytes: int = 1024**2
    """Bytes of these changes; a handler may copy what it receives."""
    handler_retry_seconds: float = 0.1
    """Seconds of the first pause after a handler failed; each is twice as long."""
    replay_page_events: int = 500
    """Events of a replay that are read at once; 256 take 4 % more CPU for each."""
    turn_poll_seconds: float = 0.1
    """Poll interval, in seconds, of callers who wait for the turns of sessions."""
    partial_seconds: float = 0.2
    """Seconds between two writes of the partials of an event loop's running turns: a
    reader elsewhere receives a token half as late, on average, and 10 ms."""
    partial_bytes: int = 8_000_000
    """Bytes of partials that are written at once."""
    partial_unwritten_bytes: int = 64_000_000
    """Bytes of partials that may wait for MongoDB to be back."""
    stop_poll_seconds: float = 0.5
    """Poll interval, in seconds, of requests to stop running turns."""
    abort_seconds: float = 0.5
    """Seconds in which a stopped agent has to heed ADK's signal; then its task is
    cancelled."""
    cancel_seconds: float = 5.0
    """Seconds in which its task has to end then; later it can store nothing."""
    recovery_seconds: float = 1.0
    """Poll interval, in seconds, of abandoned turns."""
    response_seconds: float = 10.0
    """Seconds in which no event may come between a function call and its response."""
    rebase_attempts: int = 100
    """How often other writers may append before a late append."""
    fork_step: int = 2000
    """Events that a fork copies in one step, which takes about 0.1 s."""
    unindexed_documents: int = 10_000
    """Documents of a collection above which no call waits for the build of an index;
    that of so many takes about a tenth of a second."""
    page_events: int = 256
    """Events of a log that are read at once, if they fit into a reply of 16 MB."""
    block_events: int = 16
    """Events kept together in the read cache, built in a fifth of a millisecond."""
    reply_documents: int = 5_000
    """Documents per reply, of 16 MB at most: the driver handles these in 10 ms."""
    inbox_changes: int = 1024
    """Changes that may wait to be read by one subscriber."""
    stream_await_seconds: float = 1.0
    """Seconds that the server holds a request for more changes, abandoned ones too."""
    stream_silence_seconds: float = 15.0
    """Seconds without a reply after which a change stream is reopened."""
    feed_linger_seconds: float = 10.0
    """Seconds a change stream stays open after its last subscription."""
    sweep_interval: float = 60.0
    """Seconds between two sweeps of expired sessions, at most; infinite for none."""
    sweep_rest: float = 1.0
    """Seconds between two sweeps of expired sessions, at least."""
    sweep_patience: float = 1.0
    """Seconds after which a sweep leaves a locked session for later."""
    removed_events: int = 1000
    """Events removed in one transaction: about 30 ms, and 200 kB of MongoDB's oplog."""
    redacted_events: int = 100
    """Events redacted in one transaction."""
    prune_page: int = 1000
    """Idle or old sessions found by one query of ``prune``."""
    http_authorize_seconds: float = 10.0
    """Seconds that ``authorize`` may take to answer a request over HTTP."""
    http_answer_seconds: float = 10.0
    """Seconds that a request over HTTP waits for MongoDB to read something."""
    http_heartbeat_seconds: float = 15.0
    """Seconds after which a silent stream sends a heartbeat; after as many,
    ``authorize`` is asked again."""
    http_unread_seconds: float = 30.0
    """Seconds that a client has to take each piece of an answer or a stream."""
    http_unread_bytes: int = 8_000_000
    """Bytes of changes that may wait for the reader of a stream."""
    http_page_bytes: int = 1_000_000
    """Bytes of JSON after which a page of events, or of sessions, ends."""
    prune_batch: int = 40
    """Sessions that ``prune`` examines together; fewer than one step removes."""


DEFAULT = Limits()
