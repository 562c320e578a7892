"""Administration of a deployment: doctor, migrations, and the privileges to grant."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mongo_session_service.admin.grants import FEATURES, role_for, script

if TYPE_CHECKING:
    from mongo_session_service.admin.doctor import Finding, Status, examine
    from mongo_session_service.admin.migrator import Migrator

__all__ = [
    "FEATURES",
    "Finding",
    "Migrator",
    "Status",
    "examine",
    "role_for",
    "script",
]


def __getattr__(name: str) -> object:
    """Import what needs a service on first use: roles need no ADK, which is slow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "migrator" if name == "Migrator" else "doctor"
    return getattr(import_module(f"{__name__}.{home}"), name)
