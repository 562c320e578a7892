"""What is judged too large is no value that a document can hold."""

from __future__ import annotations

import pytest

from mongo_session_service.transfer.sources.adk_rows import check_weight
from mongo_session_service.transfer.sources.base_source import MalformedError

DOCUMENT = 16 * 1024 * 1024
"""Bytes of the largest document."""


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b"x" * DOCUMENT + b'"',
        b'"' + b"x" * DOCUMENT + "\N{GRINNING FACE}".encode() + b'"',
        b'"' + "\N{GRINNING FACE}".encode() * (DOCUMENT // 4) + b'"',
        b'"' + b"\\n" * DOCUMENT + b'"',
        b"[" + b"1.5, " * (DOCUMENT // 16) + b"1]",
        b"[" + b'{"name": "x", "value": 1.5}, ' * (DOCUMENT // 100) + b"1]",
    ],
    ids=["text", "one wide", "wide", "escaped", "numbers", "objects"],
)
def test_what_fits_into_a_document_can_be_read(text: bytes) -> None:
    """Text and values of sixteen megabytes are not refused."""
    check_weight(text)


@pytest.mark.parametrize("value", [b"[]", b"{}", b'{"":0}', b'"ab"'])
def test_what_grows_much_is_refused(value: bytes) -> None:
    """Small values take many times their length."""
    with pytest.raises(MalformedError, match="too much memory"):
        check_weight(b"[" + (value + b",") * 1_500_000 + value + b"]")
