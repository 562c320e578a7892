"""The sharding script in MongoDB's own shell, as far as a replica set permits it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from pymongo import MongoClient
from support.cli_runner import call

from mongo_session_service.schema.indexes import INDEXES
from mongo_session_service.schema.sharding import SHARD_KEY, SHARDED

pytestmark = pytest.mark.release

AS_A_MONGOS = """
const asked = [];
db.hello = () => ({ msg: "isdbgrid" });
sh = {};
for (const each of ["enableSharding", "shardCollection", "updateZoneKeyRange"]) {
  sh[each] = (...values) => { asked.push([each, ...values]); };
}
"""
REPORT = "\nprint(JSON.stringify(asked));\n"


def run(
    shell: Path, uri: str, folder: Path, script: str
) -> subprocess.CompletedProcess[str]:
    """What the shell makes of a script."""
    file = folder / "shard.js"
    file.write_text(script)
    return subprocess.run(
        [shell / "mongosh", uri, "--quiet", "--norc", "--file", file],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_script_runs_in_the_shell(
    shell: Path, mongodb_uri: str, database: str, admin: MongoClient, tmp_path: Path
) -> None:
    """Its indexes are created, twice without harm, and its commands are a mongos's.

    No mongos is at hand: the three commands that need one are recorded.
    """
    options = ["--database", database, "--prefix", "chat_", "--zone", 'a"b=eu']
    script = call("shard", "--plan", *options).stdout
    setting = AS_A_MONGOS + script + REPORT

    refused = run(shell, mongodb_uri, tmp_path, script)
    done = [run(shell, mongodb_uri, tmp_path, setting) for _ in range(2)]

    assert (refused.returncode, "This is not a mongos" in refused.stderr) == (1, True)
    assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 2
    asked = [step for each in done for step in json.loads(each.stdout)]
    names = [f"{database}.chat_{each}" for each in SHARDED]
    sharded = [each for each in asked if each[0] == "shardCollection"]
    assert sharded == [["shardCollection", name, SHARD_KEY] for name in names] * 2
    zoned = [each for each in asked if each[0] == "updateZoneKeyRange"]
    assert [(each[1], each[4]) for each in zoned] == [(it, "eu") for it in names] * 2
    assert {each[2]["_id.app_name"] for each in zoned} == {'a"b'}
    for name in SHARDED:
        there = admin[database][f"chat_{name}"].index_information()
        keys = [[path for path, _ in each["key"]] for each in there.values()]
        assert any(key[:2] == list(SHARD_KEY) for key in keys)
        own = [each for each in INDEXES if each.collection == name]
        assert all(it.is_like(there) for it in own if it.name in there)
