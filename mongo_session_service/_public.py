"""Public names: classes that report the package as their module."""

from __future__ import annotations

from typing import TypeVar

_Class = TypeVar("_Class", bound=type)


def public(cls: _Class) -> _Class:
    """Have tracebacks, ``repr`` and docs show ``mongo_session_service.Change``.

    Applied once the class is made: pydantic and dataclasses look up annotations in the
    module that really defines it. Pickles find it by the public name as well.
    """
    cls.__module__ = "mongo_session_service"
    return cls
