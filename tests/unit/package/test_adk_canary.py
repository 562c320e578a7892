"""What the service follows of ADK is as it was when it was last looked at."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from google.adk.cli import service_registry
from google.adk.events import EventActions
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import (
    GetSessionConfig,
    ListSessionsResponse,
)
from pydantic import BaseModel

from mongo_session_service import MongoSessionService
from mongo_session_service.codec.waiting_calls import ABORTED

PUBLIC = {
    "append_event",
    "create_session",
    "delete_session",
    "flush",
    "get_session",
    "get_user_state",
    "list_sessions",
}
INTERNAL = {
    "_apply_temp_state",
    "_commit_event_to_session",
    "_trim_temp_delta_state",
    "_update_session_state",
}
"""What ADK's own ``append_event`` does to the caller's session."""

FIELDS: dict[type[BaseModel], set[str]] = {
    Session: {"app_name", "events", "id", "last_update_time", "state", "user_id"},
    GetSessionConfig: {"after_timestamp", "num_recent_events"},
    ListSessionsResponse: {"sessions"},
    EventActions: {
        "agent_state",
        "artifact_delta",
        "compaction",
        "end_of_agent",
        "escalate",
        "render_ui_widgets",
        "requested_auth_configs",
        "requested_tool_confirmations",
        "rewind_before_invocation_id",
        "route",
        "set_model_response",
        "skip_summarization",
        "state_delta",
        "transfer_reason",
        "transfer_to_agent",
    },
}
"""Of the newest ADK; an older one has fewer."""


def parameters(method: Any) -> dict[str, tuple[Any, Any]]:
    found = inspect.signature(method).parameters.values()
    return {each.name: (each.kind, each.default) for each in found}


def test_adk_has_no_method_that_is_not_known() -> None:
    """A new method, or a new step of an append, needs one of ours or a reason."""
    names = {name for name in vars(BaseSessionService) if not name.startswith("__")}

    assert names - {"_abc_impl"} <= PUBLIC | INTERNAL


@pytest.mark.parametrize("name", sorted(PUBLIC & vars(BaseSessionService).keys()))
def test_a_method_of_adk_takes_what_adk_gives_it(name: str) -> None:
    """Parameters have ADK's names, kinds and defaults; more of ours are optional."""
    of_adk = parameters(getattr(BaseSessionService, name))
    ours = parameters(getattr(MongoSessionService, name))

    assert {each: ours.get(each) for each in of_adk} == of_adk
    assert {ours[each] for each in ours.keys() - of_adk} <= {
        (inspect.Parameter.KEYWORD_ONLY, None)
    }


@pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)
def test_adk_has_no_field_that_is_not_known(model: type[BaseModel]) -> None:
    """A new field has to be stored, or a reason not to be."""
    assert set(model.model_fields) <= FIELDS[model]


def test_the_slot_of_the_marker_is_as_it_was() -> None:
    """ADK keeps text there, and compares it in its own services alone."""
    private = Session.__private_attributes__["_storage_update_marker"]
    assert private.default is None
    assert str(Session.__annotations__["_storage_update_marker"]) == "str | None"


def test_no_service_of_adk_has_our_scheme() -> None:
    """Of two that are registered under a scheme, the last one wins in silence."""
    registry = service_registry.ServiceRegistry()
    vars(service_registry)["_register_builtin_services"](registry)
    schemes = vars(registry)["_session_factories"].keys()
    assert "sqlite" in schemes
    assert "mongodb" not in schemes


def test_adks_rules_for_aborted_and_waiting_calls_are_known() -> None:
    """We follow what ADK does to an aborted invocation, and what it waits for."""
    if find_spec("google.adk.events._interrupts") is None:
        return  # of a release before 2.13
    interrupts = import_module("google.adk.events._interrupts")
    aborts = import_module("google.adk.events._abort_events")
    assert parameters(interrupts.index_open_interrupts).keys() == {"events"}
    assert {*parameters(vars(aborts)["_build_abort_events"])} == {
        *("events", "invocation_id", "root_agent_name", "branch")
    }
    assert vars(aborts)["_INVOCATION_ABORTED"] == ABORTED


def test_scopes_of_state_have_adks_prefixes() -> None:
    """Keys are told apart as ADK does."""
    prefixes = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)

    assert prefixes == ("app:", "user:", "temp:")
