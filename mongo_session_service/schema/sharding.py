"""Sharding: the shard key of the collections that a cluster spreads, and its script."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from mongo_session_service.model import records
from mongo_session_service.schema.indexes import INDEXES, Index

SHARD_KEY: Final = {f"_id.{name}": 1 for name in records.SHARD_KEY}
"""A user's documents are on one shard, and users of an app on as many as it needs."""

SHARDED: Final = ("sessions", "events", "user_states", "partials")
"""The collections that grow with the users; all others stay on one shard."""

_APP, _USER = SHARD_KEY


def shard_key_index(collection: str) -> Index:
    """Return the index that begins with the key, which MongoDB needs to shard.

    It is one that :mod:`~mongo_session_service.schema.setup` creates, if there is any.
    """
    fields = tuple(SHARD_KEY)
    for each in INDEXES:
        if each.collection == collection and each.keys[: len(fields)] == fields:
            return each
    return Index(
        collection=collection,
        name="shard_key",
        keys=fields,
        serves="the cluster finds the documents of a range of the shard key",
    )


def script(database: str, prefix: str, zones: Iterable[tuple[str, str]] = ()) -> str:
    """Write a script for mongosh that shards the collections and can be run again.

    The ``zones`` are apps that stay in a zone, each with the zone's name.
    """
    indexes = {name: shard_key_index(name) for name in SHARDED}
    listed = ",\n".join(
        f"  {json.dumps([f'{prefix}{name}', dict(each.directed_keys), each.options])}"
        for name, each in indexes.items()
    )
    ranges = "".join(f"\n  {json.dumps(each)}," for each in zones)
    return f"""\
// Run it through a mongos, as an administrator: mongosh URI --file shard.js
if (db.hello().msg !== "isdbgrid") {{
  throw new Error("This is not a mongos: only a sharded cluster has shards.");
}}
const name = {json.dumps(database)};
const key = {json.dumps(SHARD_KEY)};
// Collections, each with an index that begins with the key.
const collections = [
{listed},
];
// Apps, each with its zone, which has shards: sh.addShardToZone(SHARD, ZONE)
const zones = [{ranges}
];
sh.enableSharding(name);
for (const [collection, index, options] of collections) {{
  db.getSiblingDB(name).getCollection(collection).createIndex(index, options);
  sh.shardCollection(`${{name}}.${{collection}}`, key);
  for (const [app, zone] of zones) {{
    const from = {{ "{_APP}": app, "{_USER}": new MinKey() }};
    const to = {{ "{_APP}": app, "{_USER}": new MaxKey() }};
    sh.updateZoneKeyRange(`${{name}}.${{collection}}`, from, to, zone);
  }}
}}
"""
