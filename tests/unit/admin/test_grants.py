"""Privileges as data, and the script that grants them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import playwright
import pytest

from mongo_session_service.admin.privileges import (
    FEATURES,
    Privilege,
    needs,
    role_for,
    script,
)
from mongo_session_service.cli.server_commands import grants

PACKAGE = Path(__file__).parents[3] / "mongo_session_service"
FIND = Privilege("find", "db", "events")
NODE = Path(playwright.__file__).parent / "driver" / "node"
RECORDER = """
const roles = new Set(%s);
const told = [];
const db = {getSiblingDB: (database) => ({
  getRole: (name) => roles.has(name) ? {} : null,
  createRole: (role) => told.push(["create", database, role]),
  updateRole: (name, role) => told.push(["update", database, {role: name, ...role}]),
})};
%s
console.log(JSON.stringify(told));
"""


@pytest.mark.parametrize(
    ("resource", "is_enough"),
    [
        ({"db": "db", "collection": "events"}, True),
        ({"db": "db", "collection": ""}, True),
        ({"db": "", "collection": "events"}, True),
        ({"db": "", "collection": ""}, True),
        ({"anyResource": True}, True),
        ({"db": "db", "collection": "sessions"}, False),
        ({"db": "other", "collection": ""}, False),
        ({"cluster": True}, False),
    ],
)
def test_a_privilege_is_held_on_more_than_its_collection(
    resource: dict[str, Any], *, is_enough: bool
) -> None:
    """What is granted on a database, or on all, holds for each collection."""
    assert FIND.is_among([{"resource": resource, "actions": ["find"]}]) is is_enough
    assert not FIND.is_among([{"resource": resource, "actions": ["insert"]}])


def test_every_collection_of_the_service_is_granted() -> None:
    """No collection that the package reads or writes is left out of the role."""
    named = re.compile(r'\b(?:Query|Insert|Update|Delete|lease)\(\s*"(\w+)"')
    sources = [each.read_text() for each in PACKAGE.rglob("*.py")]
    own = {f"p_{name}" for each in sources for name in named.findall(each)}

    granted = {each.collection for each in needs(FEATURES, "db", "p_")}

    assert own <= granted
    assert len(own) > 5


def test_every_feature_is_explained() -> None:
    """The help of ``grants`` describes each."""
    explanation = grants.help or ""

    assert [each for each in FEATURES if f'"{each}"' not in explanation] == []


@pytest.mark.parametrize("there", [[], ["my_role"]])
def test_the_script_creates_a_role_or_brings_it_up_to_date(there: list[str]) -> None:
    """It is JavaScript that leaves the role with the same privileges, either way."""
    created = role_for("db", name="my_role")
    program = RECORDER % (json.dumps(there), script(created))

    output = subprocess.run(
        [NODE, "-"], input=program, text=True, capture_output=True, check=True
    ).stdout

    ((verb, database, told),) = json.loads(output)
    assert verb == ("update" if there else "create")
    assert database == "admin"
    assert told == {
        "role": "my_role",
        "privileges": created["privileges"],
        "roles": [],
    }
