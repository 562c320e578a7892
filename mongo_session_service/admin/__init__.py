"""Administration of a deployment: doctor, privileges, and what a database holds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mongo_session_service.admin.privileges import FEATURES, role_for, script

if TYPE_CHECKING:
    from mongo_session_service.admin import (  # noqa: F401
        consumer_places,
        sizes,
        stored_contents,
    )
    from mongo_session_service.admin.doctor import Finding, Status, examine

__all__ = [
    "FEATURES",
    "Finding",
    "Status",
    "examine",
    "role_for",
    "script",
]


def __getattr__(name: str) -> object:
    """Import what needs a service on first use: roles need no ADK, which is slow."""
    # Which the command line uses.
    if name in {"stored_contents", "consumer_places", "sizes"}:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.doctor"), name)
