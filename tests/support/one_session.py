"""The one session that many tests are about."""

from __future__ import annotations

from google.adk.sessions import BaseSessionService, Session

IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}


async def read(service: BaseSessionService) -> Session:
    """It, as a service reads it."""
    found = await service.get_session(**IDS)
    assert found is not None
    return found


def authors(session: Session) -> list[str]:
    """Whose events it has, in order."""
    return [event.author for event in session.events]
