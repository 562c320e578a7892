"""Small limits for tests: a page of two events, a lease of half a second.

A service takes them as its argument ``_limits``, which no application needs. Any
release may change their names and meanings.
"""

from __future__ import annotations

from mongo_session_service.model.limits import Limits

__all__ = ["Limits"]
