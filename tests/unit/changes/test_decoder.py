"""What change stream documents mean."""

from __future__ import annotations

from bson.timestamp import Timestamp

from mongo_session_service.changes import decoder


def test_older_servers_have_no_wall_time() -> None:
    """Before MongoDB 6.0 the deployment's clock is used, in whole seconds."""
    assert decoder.committed_at({"clusterTime": Timestamp(7, 1)}) == 7.0
