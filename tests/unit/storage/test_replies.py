"""Replies: documents decoded a few at a time, or all at once, are what they were."""

from __future__ import annotations

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import given, settings
from hypothesis import strategies as st

from mongo_session_service.storage import replies

_SIZES = st.lists(st.integers(0, 2) | st.integers(60_000, 70_000), max_size=12)


@settings(max_examples=30)
@given(_SIZES)
def test_documents_are_decoded_in_order(sizes: list[int]) -> None:
    """However many are decoded together."""
    documents = [{"n": n, "text": "x" * size} for n, size in enumerate(sizes)]
    encoded = [bson.encode(each) for each in documents]

    assert list(replies.decode_documents(encoded)) == documents


def test_parts_of_a_reply_are_decoded() -> None:
    """The driver hands long ones out as views of the reply."""
    documents = [{"n": number, "text": "x" * 5000} for number in range(50)]
    raw = bson.encode({"batch": documents})
    batch = RawBSONDocument(raw, replies.RAW)["batch"]

    assert list(replies.decode_documents(each.raw for each in batch)) == documents


def test_documents_are_decoded_when_they_are_asked_for() -> None:
    """Not all of them at once: that would take the time of other tasks."""
    encoded = bson.encode({"text": "x" * 50_000})
    asked = []
    endless = iter(lambda: asked.append(None) or encoded, b"")

    next(replies.decode_documents(endless))

    assert len(asked) == 2


@pytest.mark.parametrize("name", ["firstBatch", "nextBatch"])
@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text("ab"), st.integers(0, 2**40)), max_size=120))
def test_a_reply_is_split_into_its_documents(
    name: str, documents: list[dict[str, int]]
) -> None:
    """Wherever the server puts the other fields, and whatever a document is about."""
    encoded = [bson.encode(each) for each in [*documents, {name: [name]}]]
    batch = [RawBSONDocument(each) for each in encoded]
    fields = {"id": 2**60, name: batch, "ns": f"{name}.{name}", "at": 1.5}
    reply = RawBSONDocument(bson.encode({"cursor": fields, "ok": 1.0}), replies.RAW)
    del fields[name]

    assert replies.split_reply(reply, name) == (encoded, fields)


def test_a_small_reply_is_decoded_at_once() -> None:
    """Its documents are those of a long reply, with plain integers."""
    batch = [{"_id": "a", "n": 2**40}]
    small, long = (
        RawBSONDocument(bson.encode({"cursor": {"firstBatch": batch, "x": text}}))
        for text in ("x", "x" * 300_000)
    )

    decoded = (replies.decode_small_reply(small) or {})["firstBatch"]

    assert decoded == batch
    assert type(decoded[0]["n"]) is int
    assert replies.decode_small_reply(long) is None
