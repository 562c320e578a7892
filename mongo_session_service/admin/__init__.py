"""Inspection of a deployment: the doctor and the privileges a user needs."""

from __future__ import annotations

from mongo_session_service.admin.doctor import Finding, Status, examine

__all__ = ["Finding", "Status", "examine"]
