"""What type checkers know of the public API."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter
from typing import Any, Final

import mongo_session_service

MODULES = ("", ".adk", ".admin", ".embedded", ".http", ".testing", ".transfer")
STATE: Final = "a value of state is whatever JSON can say"
ID: Final = "an _id, to be given as **ids beside arguments of other types"
UNTYPED = {
    "Change.state": STATE,
    "Change.state_delta": STATE,
    "Hook": "it is given an event as JSON, or a value of state",
    "MongoSessionService(client)": "the three drivers' clients have no type in common",
    "MongoSessionService.create_session(state)": STATE,
    "MongoSessionService.find_sessions(where)": STATE,
    "MongoSessionService.get_user_state()": STATE,
    "SessionKey.event_id()": ID,
    "SessionKey.id()": ID,
    "SessionSummary.state": STATE,
    "register(service_arguments)": "MongoSessionService spells them out",
}
"""Where ``Any`` or ``**kwargs`` stands, and why."""


def annotated(name: str, public: Any) -> Iterator[tuple[str, str]]:
    """What a public function, alias or class is annotated with, fields included."""
    if inspect.isfunction(public):
        yield from calls(name, public)
    elif not inspect.isclass(public):
        yield name, str(public)
    else:
        for field, annotation in vars(public).get("__annotations__", {}).items():
            yield f"{name}.{field}", str(annotation)
        yield from calls(name, vars(public).get("__init__"))
        for member in dir(public):
            found = inspect.getattr_static(public, member)
            found = found.fget if isinstance(found, property) else found
            if not member.startswith("_"):
                yield from calls(f"{name}.{member}", getattr(found, "__func__", found))


def calls(name: str, function: Any) -> Iterator[tuple[str, str]]:
    """What arguments and results are annotated with, in code that is ours."""
    if not inspect.isfunction(function) or "mongo" not in function.__module__:
        return
    signature = inspect.signature(function)
    yield f"{name}()", str(signature.return_annotation)
    for each in signature.parameters.values():
        is_vague = each.kind is Parameter.VAR_KEYWORD and "Unpack" not in str(each)
        yield f"{name}({each.name})", "Any" if is_vague else str(each.annotation)


def test_nothing_public_is_untyped_that_could_be_typed() -> None:
    """``Any`` and ``**kwargs`` stand only where there is a reason for it."""
    untyped = set()
    for module in MODULES:
        exporter = import_module(f"{mongo_session_service.__name__}{module}")
        for name in exporter.__all__:
            for place, annotation in annotated(name, getattr(exporter, name)):
                if "Any" in annotation:
                    untyped.add(place)

    assert untyped == set(UNTYPED)
