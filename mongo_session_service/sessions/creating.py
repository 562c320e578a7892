"""Creating a session, in the place of one that has expired perhaps."""

from __future__ import annotations

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.platform import time as platform_time

from mongo_session_service.backend import Opened
from mongo_session_service.model.records import NewSession

from .deletion import ATTEMPTS, remove_expired
from .group_commit import Caller


async def create(opened: Opened, new: NewSession) -> None:
    """Store a session.

    Raises:
        AlreadyExistsError: there is one that has not expired.
    """
    for left in reversed(range(ATTEMPTS)):
        try:
            await opened.committer.commit(Caller.creating(new))
        except AlreadyExistsError:
            now = platform_time.get_time()
            if not (await remove_expired(opened.connection, new.key, now) and left):
                raise
        else:
            return
