"""Give sessions titles and labels, page through them, and find them by their state."""

import asyncio
import os
from typing import Any

from mongo_session_service import MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
ADA: dict[str, Any] = {"app_name": "trips", "user_id": "ada"}
CITIES = ("Turin", "Lisbon", "Oslo")


async def main() -> None:
    async with MongoSessionService(URI) as service:
        for city in CITIES:
            if await service.get_session(**ADA, session_id=city) is None:
                await service.create_session(
                    **ADA,
                    session_id=city,
                    title=f"Trip to {city}",
                    labels={"season": "winter" if city == "Oslo" else "summer"},
                    state={"city": city},
                    ttl=30 * 24 * 3600,  # seconds after the last append
                )

        token = None
        while True:  # pages of two, the newest session first
            page = await service.find_sessions(**ADA, limit=2, page_token=token)
            print([session.title for session in page.sessions])
            token = page.next_page_token
            if token is None:
                break

        page = await service.find_sessions(**ADA, labels={"season": "summer"})
        print("in summer:", [session.title for session in page.sessions])
        page = await service.find_sessions(**ADA, where={"city": "Oslo"})
        print("to Oslo:", [session.title for session in page.sessions])


if __name__ == "__main__":
    asyncio.run(main())
