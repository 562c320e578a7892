"""Look at a session as it was, and continue from there in a copy of it."""

import asyncio
import os

from google.adk.events import Event, EventActions

from mongo_session_service import MongoSessionService, SessionKey

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")


async def main() -> None:
    async with MongoSessionService(URI) as service:
        # Without a session_id, ADK chooses a new one for each run.
        session = await service.create_session(app_name="plans", user_id="ada")
        for city in ("Turin", "Lisbon", "Oslo"):
            actions = EventActions(state_delta={"city": city})
            await service.append_event(session, Event(author="me", actions=actions))

        key = SessionKey("plans", "ada", session.id).id
        past = await service.get_session_at(**key, revision=2)
        print("after two events:", past and past.state)

        fork = await service.fork_session(**key, at_revision=1)
        actions = EventActions(state_delta={"city": "Porto"})
        await service.append_event(fork, Event(author="me", actions=actions))
        for name, each in (("the session", session), ("its fork", fork)):
            cities = [event.actions.state_delta["city"] for event in each.events]
            print(f"{name}: {cities}")


if __name__ == "__main__":
    asyncio.run(main())
