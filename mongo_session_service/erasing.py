"""The service's methods that erase: a user, or an app, and every trace of them."""

from __future__ import annotations

from dataclasses import dataclass

from mongo_session_service.consumers.checkpoint import (
    forget_in_checkpoints,
    forget_in_dead_letters,
    remove_consumers,
)
from mongo_session_service.driver.connection import Connection
from mongo_session_service.lifecycle import Lifecycle
from mongo_session_service.model.validation import check_id
from mongo_session_service.sessions import deletion, queries
from mongo_session_service.telemetry import traced


@dataclass(frozen=True, slots=True)
class Erased:
    """What a call has removed; what an interrupted one removed before is not in it."""

    sessions: int
    """Those whose removal began here."""
    events: int
    user_states: int
    app_states: int
    dead_letters: int
    checkpoints: int
    """Of consumers: removed with their app, or no longer naming who is erased."""


class Erasing(Lifecycle):
    """What nothing is to be left of."""

    @traced
    async def delete_user(self, *, app_name: str, user_id: str) -> Erased:
        """Erases a user of an app: nothing in any collection has the id any more.

        That is sessions, events, state, and what consumers have noted. It goes in small
        steps; if it is interrupted, or the user goes on writing meanwhile, call it
        again. A session that is created meanwhile is erased as well, or stays whole; an
        append to one that is gone raises ``SessionNotFoundError``. Who watches is told
        that each session is ``deleted``.

        Args:
            app_name: The app.
            user_id: The user.
        """
        app_name, user_id = check_id("app_name", app_name), check_id("user_id", user_id)
        async with self._opened() as opened:
            at = opened.connection
            logs = await _erase_logs(at, app_name, user_id)
            id_ = queries.user_state_id(app_name, user_id)
            states = await at.user_states.delete_one({"_id": id_})
            await at.imports.delete_one({"_id": {"of": id_}})
            return Erased(
                sessions=logs.sessions,
                events=logs.events,
                user_states=states.deleted_count,
                app_states=0,
                dead_letters=await forget_in_dead_letters(at, app_name, user_id),
                checkpoints=await forget_in_checkpoints(at, app_name, user_id),
            )

    @traced
    async def delete_app(self, *, app_name: str) -> Erased:
        """Erases an app, with all its users, its state and its consumers.

        As :meth:`delete_user` does. Close the app's consumers before: the checkpoint
        under which they read goes, and they are told so by ``LeaseLostError``.

        Args:
            app_name: The app.
        """
        app_name = check_id("app_name", app_name)
        async with self._opened() as opened:
            at = opened.connection
            logs = await _erase_logs(at, app_name, None)
            of_users = queries.all_user_states(app_name, None)
            users = await at.user_states.delete_many(of_users)
            app = await at.app_states.delete_one({"_id": app_name})
            notes = {"$or": [{"_id": {"of": app_name}}, {"_id.of.app_name": app_name}]}
            await at.imports.delete_many(notes)
            letters = await forget_in_dead_letters(at, app_name, None)
            consumers = await remove_consumers(at, app_name)
            return Erased(
                sessions=logs.sessions,
                events=logs.events,
                user_states=users.deleted_count,
                app_states=app.deleted_count,
                dead_letters=letters,
                checkpoints=consumers + await forget_in_checkpoints(at, app_name, None),
            )


async def _erase_logs(
    connection: Connection, app_name: str, user_id: str | None
) -> deletion.Step:
    """Remove all sessions, and events without one that a crash may have left."""
    sessions = events = 0
    step = None
    while step is None or not step.is_last:
        wanted = queries.all_sessions(app_name, user_id)
        step = await deletion.remove_some(connection, wanted)
        sessions, events = sessions + step.sessions, events + step.events
    events += await deletion.remove_events(connection, app_name, user_id)
    return deletion.Step(sessions, events, is_last=True)
