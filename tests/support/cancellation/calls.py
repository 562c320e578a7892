"""Every method that waits, and the calls by which it is tried."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from mongo_session_service import Consumer, MongoSessionService, Subscription
from support.cancellation import readers, reads, writes
from support.cancellation.world import Case

WRITES = [
    Case("MongoSessionService.__aenter__ and __aexit__", writes.open_, 5),
    Case("MongoSessionService.setup", writes.setup, 5),
    Case("MongoSessionService.create_session", writes.create, 10),
    Case("MongoSessionService.append_event", writes.append, 10),
    Case("MongoSessionService.append", writes.append_alone, 10),
    Case("MongoSessionService.append_event", writes.rebase, 20),
    Case("MongoSessionService.append_event", writes.rewind, 10),
    Case("MongoSessionService.update_session", writes.update, 10),
    Case("MongoSessionService.fork_session", writes.fork, 25),
    Case("MongoSessionService.trim_session", writes.trim, 15),
    Case("MongoSessionService.redact_events", writes.redact, 15),
    Case("MongoSessionService.delete_session", writes.delete, 10),
    Case("MongoSessionService.delete_session", writes.delete_long, 20),
    Case("MongoSessionService.delete_user", writes.delete_user, 20),
    Case("MongoSessionService.delete_app", writes.delete_app, 20),
    Case("MongoSessionService.prune", writes.prune, 5),
    Case("MongoSessionService.turn", writes.turn, 10),
    Case("MongoSessionService.run_turn", writes.run_turn, 10),
    Case("MongoSessionService.start_turn", writes.start_turn, 10),
    Case("MongoSessionService.start_turn", writes.edit, 25),
    Case("MongoSessionService.show_branch", writes.show_branch, 10),
    Case("MongoSessionService.stop_turn", writes.stop_turn, 2),
    Case("MongoSessionService.flush", writes.flush),
    Case("MongoSessionService.close", writes.close),
]

READS = [
    Case("MongoSessionService.get_session", reads.get, 5),
    Case("MongoSessionService.get_event", reads.get_event, 5),
    Case("MongoSessionService.list_sessions", reads.list_, 5),
    Case("MongoSessionService.get_session_at", reads.get_at, 5),
    Case("MongoSessionService.find_branches", reads.find_branches, 3),
    Case("MongoSessionService.find_sessions", reads.find, 5),
    Case("MongoSessionService.get_user_state", reads.get_user_state, 3),
    Case("MongoSessionService.iter_events", reads.iterate, 10),
    Case("MongoSessionService.iter_events", reads.iterate_live, 15),
    Case("MongoSessionService.iter_events", reads.leave, 15),
    Case("MongoSessionService.iter_user_events", reads.iterate_user, 10),
    Case("MongoSessionService.iter_user_events", reads.leave_user, 15),
    Case("MongoSessionService.ping", reads.ping, 1),
    Case("MongoSessionService.prune", reads.count_expired, 3),
    Case("MongoSessionService.find_turns", reads.find_turns, 3),
    Case("MongoSessionService.consumers", reads.consumers, 3),
]

FOLLOWERS = [
    Case("MongoSessionService.wait_for", reads.wait_for, 3),
    Case("MongoSessionService.turn", writes.turn_in_line, 15),
    Case("Subscription.__aenter__ and __aexit__", readers.watch, 10),
    Case("Subscription.__anext__", readers.watch_on),
]
"""Of what the feed tells, which has to be there before and after."""

CONSUMERS = [
    Case("Consumer.__aenter__", readers.start_at_present, 5),
    Case("Consumer.__anext__ and __aexit__", readers.consume, 20),
    Case("Consumer.commit", readers.commit, 3),
    Case("Consumer.close", readers.close, 3),
    Case("Consumer.end", readers.end, 3),
    Case("Consumer.run", readers.run, 20),
    Case("Consumer.dead_letters", readers.dead_letters, 3),
    Case("Consumer.replay_dead_letters", readers.replay_dead_letters, 5),
]

WAITS_FOR_NOTHING = {
    "MongoSessionService.consumer",
    "MongoSessionService.feed_stats",
    "MongoSessionService.watch",
    "Subscription.close",
}

ENDS_ONLY_SO = {"MongoSessionService.recover_turns"}
"""What works until it is cancelled, and has a test of its own."""


def methods() -> Iterator[str]:
    """Every public method there is, and those that ``async`` statements call."""
    for kind in (MongoSessionService, Consumer, Subscription):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            of_statement = inspect.iscoroutinefunction(method) and name[:2] == "__"
            if of_statement or not name.startswith("_"):
                yield f"{kind.__name__}.{name}"
