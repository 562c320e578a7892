"""What ADK's own tools import from the folder that they are given."""

import os

from mongo_session_service.adk import register

# Any argument of MongoSessionService, such as before_store=, can be given here.
register(uri=os.environ.get("MONGODB_URI"), on_conflict="rebase")
