"""Inspection of a deployment: the doctor and the privileges a user needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mongo_session_service.admin.grants import FEATURES, role_for, script

if TYPE_CHECKING:
    from mongo_session_service.admin.doctor import Finding, Status, examine

__all__ = ["FEATURES", "Finding", "Status", "examine", "role_for", "script"]


def __getattr__(name: str) -> object:
    """Import the doctor on first use: the roles do without ADK, which is slow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mongo_session_service.admin import doctor  # noqa: PLC0415

    return getattr(doctor, name)
