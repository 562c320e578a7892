"""A MongoDB replica set of this process, for tests, demos and development."""

from __future__ import annotations

from .mongod import EmbeddedServerError
from .replica_set import EmbeddedReplicaSet

__all__ = ["EmbeddedReplicaSet", "EmbeddedServerError"]
