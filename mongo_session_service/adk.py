"""Registration with ADK: what its tools build for a MongoDB URI."""

from __future__ import annotations

from typing import Any

from google.adk.cli.service_registry import get_service_registry

from mongo_session_service.errors import ConfigurationError, quoted
from mongo_session_service.service import MongoSessionService

__all__ = ["register"]


def register(
    service: MongoSessionService | None = None, /, **service_arguments: Any
) -> None:
    """Has ADK use ``MongoSessionService`` for ``mongodb`` and ``mongodb+srv`` URIs.

    Call it in the ``services.py`` that ``adk web``, ``adk api_server`` and ``adk run``
    import, or before ``get_fast_api_app``. It contacts nothing. The last call counts,
    also for what ``services.yaml`` has registered before.

    ::

        register(on_conflict="rebase")

    Args:
        service: What ADK uses for every such URI, whose text is then ignored. The
            caller goes on to use it too, and closes it.
        **service_arguments: Arguments of ``MongoSessionService``. They precede those
            that ADK passes: with ``uri`` or ``client``, the URI that ADK was given
            only selects the session service.

    Nothing is raised here, since ADK ignores a ``services.py`` that fails: if an
    argument is wrong, ADK's tools end with ``ConfigurationError`` as they start.
    """

    def build(uri: str, **adk_arguments: Any) -> MongoSessionService:
        where = {} if "client" in service_arguments else {"uri": uri}
        arguments = where | adk_arguments | service_arguments
        if service is None:
            return MongoSessionService(**arguments)
        if ignored := arguments.keys() - {"uri", "agents_dir"}:
            raise ConfigurationError(
                f"register() was given both a service and {quoted(min(ignored))}: give"
                " that to MongoSessionService instead."
            )
        return service

    for scheme in ("mongodb", "mongodb+srv"):
        get_service_registry().register_session_service(scheme, build)
