"""Embedded MongoDB: a replica set of this process, for tests and development."""

from __future__ import annotations

from mongo_session_service.embedded.mongod import EmbeddedServerError
from mongo_session_service.embedded.replica_set import EmbeddedReplicaSet

__all__ = ["EmbeddedReplicaSet", "EmbeddedServerError"]
