"""A reply is split into the documents that it holds."""

from __future__ import annotations

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import given, settings
from hypothesis import strategies as st

from mongo_session_service.storage import snapshots


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
    reply = RawBSONDocument(bson.encode({"cursor": fields, "ok": 1.0}), snapshots.RAW)
    del fields[name]

    assert snapshots.split_reply(reply, name) == (encoded, fields)
