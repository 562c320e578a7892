"""Administration of a deployment: doctor, privileges, new keys."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mongo_session_service.admin.privileges import FEATURES, role_for, script

if TYPE_CHECKING:
    from mongo_session_service.admin import positions, stored_contents  # noqa: F401
    from mongo_session_service.admin.doctor import Finding, Status, examine
    from mongo_session_service.admin.resealing import Resealed, reseal

__all__ = [
    "FEATURES",
    "Finding",
    "Resealed",
    "Status",
    "examine",
    "reseal",
    "role_for",
    "script",
]

_HOMES = {
    "Resealed": "resealing",
    "reseal": "resealing",
}


def __getattr__(name: str) -> object:
    """Import what needs a service on first use: roles need no ADK, which is slow."""
    if name in {"stored_contents", "positions"}:  # which the command line uses
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "doctor")
    return getattr(import_module(f"{__name__}.{home}"), name)
