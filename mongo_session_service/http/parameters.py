"""Query parameters: the numbers and names that a request gives."""

from __future__ import annotations

from starlette.requests import Request

from mongo_session_service.errors import InvalidInputError


def number(text: str) -> int | None:
    """The number from 0 that a text is in plain digits; None if it is none."""
    is_number = text.isascii() and text.isdecimal() and len(text) < len(str(2**63))
    return int(text) if is_number else None


def revision_of(request: Request, name: str) -> int | None:
    """The revision that a parameter gives; None if it is left out.

    Raises:
        InvalidInputError: it is none.
    """
    text = request.query_params.get(name)
    revision = None if text is None else number(text)
    if text is not None and revision is None:
        raise InvalidInputError(f"{name} must be a number of appends.")
    return revision


def flag_of(request: Request, name: str) -> bool:
    """Whether a parameter is ``true``.

    Raises:
        InvalidInputError: it is neither that nor ``false``, nor left out.
    """
    text = request.query_params.get(name, "false")
    if text not in {"true", "false"}:
        raise InvalidInputError(f"{name} must be 'true' or 'false'.")
    return text == "true"


def limit_of(request: Request, largest: int, default: int = 50) -> int:
    """How many a page may have at most, by the parameter ``limit``.

    Raises:
        InvalidInputError: it is not a number from 1 to the largest.
    """
    text = request.query_params.get("limit", str(default))
    asked = number(text)
    if asked is None or not 1 <= asked <= largest:
        raise InvalidInputError(f"limit must be a number from 1 to {largest}.")
    return asked


def labels_of(request: Request) -> dict[str, str]:
    """The labels of the parameters ``label``, each ``name=value``.

    Raises:
        InvalidInputError: one is not of that form.
    """
    pairs = [each.partition("=") for each in request.query_params.getlist("label")]
    if not all(sign for _, sign, __ in pairs):
        raise InvalidInputError("label must be a name and a value: label=name=value.")
    return {name: value for name, _, value in pairs}
