"""Roles: what an administrator has to grant the service's user."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mongo_session_service.driver.privileges import FEATURES, Privilege, needs

if TYPE_CHECKING:
    from mongo_session_service.model.records import Document

__all__ = ["FEATURES", "role", "role_for", "script"]


def role_for(
    database: str,
    *,
    prefix: str = "",
    features: Iterable[str] = FEATURES,
    name: str | None = None,
) -> Document:
    """The command that creates a role for a service's user.

    Args:
        database: The service's database.
        prefix: Its ``collection_prefix``.
        features: What the user has to be able to do, by the names in ``FEATURES``.
        name: The role's name; ``mongo_session_service_DATABASE`` by default.
    """
    name = name or f"mongo_session_service_{database}"
    return role(name, needs(features, database, prefix))


def role(name: str, privileges: Iterable[Privilege]) -> Document:
    """The command that creates a role with these privileges, and no others.

    It belongs in the database ``admin``: a role in another database cannot include the
    oplog.
    """
    actions: dict[tuple[str, str], list[str]] = {}
    for each in privileges:
        actions.setdefault((each.database, each.collection), []).append(each.action)
    return {
        "createRole": name,
        "privileges": [
            {"resource": {"db": database, "collection": collection}, "actions": several}
            for (database, collection), several in actions.items()
        ],
        "roles": [],
    }


def script(created: Document) -> str:
    """A script for mongosh that creates a role, or updates it."""
    name = json.dumps(created["createRole"])
    lines = ",\n".join(f"  {json.dumps(each)}" for each in created["privileges"])
    return f"""\
// Run it as an administrator: mongosh "mongodb://admin@host/" grants.js
const admin = db.getSiblingDB("admin");
const privileges = [
{lines},
];
if (admin.getRole({name})) {{
  admin.updateRole({name}, {{ privileges, roles: [] }});
}} else {{
  admin.createRole({{ role: {name}, privileges, roles: [] }});
}}
// Once, for the user of the service, whose URI then ends in authSource=admin:
// admin.createUser({{ user: "sessions", pwd: passwordPrompt(), roles: [{name}] }});
"""
