"""Searching a database as it is stored, for an id or a text that is to be nowhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

RAW: Any = MongoClient(connect=False).codec_options.with_options(
    document_class=RawBSONDocument
)


def traces_of(sought: str, admin: MongoClient[Any], database: str) -> list[str]:
    """Name the collection of each document that has it: as text, hexadecimal, Base64.

    It is of eight characters or more.
    """
    return [name for _, name in find_traces([sought], admin, database)]


def find_traces(
    sought: Iterable[str], admin: MongoClient[Any], database: str
) -> list[tuple[str, str]]:
    """Return each of some texts that a document has, with the collection's name."""
    forms = {each: _forms(each) for each in sought}
    return [
        (each, name)
        for name in admin[database].list_collection_names()
        for document in admin[database][name]
        .with_options(codec_options=RAW)
        .find({}, {})
        for each, shown in forms.items()
        if any(form in document.raw for form in shown)
    ]


def _forms(sought: str) -> list[bytes]:
    text = sought.encode()
    # In Base64 it looks in three ways, of which the ends depend on what is beside it.
    shifted = [base64.b64encode(b"\0" * n + text)[4:-4] for n in range(3)]
    return [text, text.hex().encode(), text.hex().upper().encode(), *shifted]
