"""The kernel's class, by the name it had, for rooms that do not use its verbs yet."""

from mongo_session_service.storage.kernel import Storage

Connection = Storage
