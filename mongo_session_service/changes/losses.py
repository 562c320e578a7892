"""When a change stream that failed need not be opened again."""

from __future__ import annotations

from typing import Final

from pymongo.errors import PyMongoError

from mongo_session_service.driver.errors import translation
from mongo_session_service.driver.retry import is_passing
from mongo_session_service.errors import ConfigurationError, HistoryLostError

_NO_CHANGE_STREAMS: Final = 40573
_LOST: Final = {
    9: "the resume token is malformed",
    15: "the resume token is malformed",
    260: "the resume token is no longer valid",
    280: "the change stream cannot be resumed",
    286: "MongoDB's oplog does not reach back that far",
    40647: "the resume token is malformed",
    40649: "the resume token is malformed",
}


def check_stream(error: Exception) -> None:
    """Raise if a change stream that failed like this need not be opened again.

    Raises:
        HistoryLostError: what comes next cannot be told any more.
        ConfigurationError: the server has no change streams.
        StorageError: the server refused.
    """
    code = getattr(error, "code", None)
    if code in _LOST:
        raise HistoryLostError(f"Changes were missed: {_LOST[code]}.") from None
    if code == _NO_CHANGE_STREAMS:
        message = (
            "This MongoDB server is a standalone: it has no change streams. Run it as"
            " a replica set: start mongod with --replSet rs0, then call rs.initiate()."
        )
        raise ConfigurationError(message) from None
    if isinstance(error, PyMongoError) and not is_passing(error):
        raise translation(error) from None
