"""Read configuration: what a request to the model needs since the last compaction."""

from __future__ import annotations

from typing import Self

from google.adk.sessions.base_session_service import GetSessionConfig
from pydantic import Field, model_validator

from mongo_session_service._public import public


@public
class SinceCompaction(GetSessionConfig):
    """Loads what a model needs of a session whose history ADK has summed up.

    That is every summary, what no summary covers, and what belongs to it: the calls of
    later responses, calls that may still be answered, private events of tasks, and what
    a rewind is found by. The model receives the same request as after loading all::

        run_config = RunConfig(get_session_config=SinceCompaction(overlap_size=1))

    ADK's own services load all events for it.
    """

    overlap_size: int = Field(default=0, ge=0)
    """How many invocations the next summary repeats, as in the ``overlap_size`` of the
    app's ``EventsCompactionConfig``; 0 if a threshold of tokens triggers it."""

    @model_validator(mode="after")
    def _check_alone(self) -> Self:
        if self.num_recent_events is not None or self.after_timestamp is not None:
            message = "SinceCompaction takes no num_recent_events or after_timestamp."
            raise ValueError(message)
        return self
