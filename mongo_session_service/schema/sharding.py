"""Sharding: the shard key of each collection that a cluster spreads."""

from __future__ import annotations

from typing import Final

from mongo_session_service.model import records

SHARD_KEY: Final = {f"_id.{name}": 1 for name in records.SHARD_KEY}
"""Its fields begin the unique index on event ids, as MongoDB demands."""

SHARDED: Final = ("sessions", "events", "user_states")
"""The collections that grow with the users; all others stay on one shard."""
