"""Searching a database as it is stored, for an id or a text that is to be nowhere."""

from __future__ import annotations

import base64
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
    text = sought.encode()
    # In Base64 it looks in three ways, of which the ends depend on what is beside it.
    shifted = [base64.b64encode(b"\0" * n + text)[4:-4] for n in range(3)]
    forms = [text, text.hex().encode(), text.hex().upper().encode(), *shifted]
    return [
        name
        for name in admin[database].list_collection_names()
        for document in admin[database][name]
        .with_options(codec_options=RAW)
        .find({}, {})
        if any(form in document.raw for form in forms)
    ]
