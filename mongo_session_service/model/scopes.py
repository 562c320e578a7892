"""State scopes: flat ADK state split into app, user and session parts, and merged.

A key's prefix names its scope: ``app:``, ``user:``, none for the session, and
``temp:`` for the current invocation, which is never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.adk.sessions.state import State


@dataclass(frozen=True, slots=True)
class ScopedState:
    """State by scope, its keys without their prefix."""

    app: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)


def without_temp(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a flat state or delta that may be stored."""
    temp = State.TEMP_PREFIX
    return {key: value for key, value in state.items() if not key.startswith(temp)}


def mapped(
    scopes: ScopedState, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> ScopedState:
    """Each scope's part, changed."""
    return ScopedState(*map(change, (scopes.app, scopes.user, scopes.session)))


def split(state: Mapping[str, Any]) -> ScopedState:
    """Sort a flat state into its scopes, dropping ``temp:`` keys."""
    scopes = ScopedState()
    for key, value in state.items():
        if ":" not in key:  # as most are
            scopes.session[key] = value
        elif key.startswith(State.APP_PREFIX):
            scopes.app[key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            scopes.user[key.removeprefix(State.USER_PREFIX)] = value
        elif not key.startswith(State.TEMP_PREFIX):
            scopes.session[key] = value
    return scopes


def merge(scopes: ScopedState) -> dict[str, Any]:
    """The flat view an agent sees: the inverse of :func:`split`."""
    return {
        **scopes.session,
        **{State.APP_PREFIX + key: value for key, value in scopes.app.items()},
        **{State.USER_PREFIX + key: value for key, value in scopes.user.items()},
    }
