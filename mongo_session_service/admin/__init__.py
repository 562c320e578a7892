"""Inspection of a deployment: the doctor and the privileges a user needs."""

from __future__ import annotations

from .checkups import Finding, Status
from .doctor import examine

__all__ = ["Finding", "Status", "examine"]
