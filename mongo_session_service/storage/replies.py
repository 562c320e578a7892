"""Stored documents as a reply holds them: encoded, and decoded a few at a time.

A reply of 16 MB takes a tenth of a second to decode, in which nothing else could run.
A small one is decoded as a whole, in two thirds of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from struct import Struct
from typing import Any, Final

import bson
from bson import codec_options
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from mongo_session_service.model.records import Document
from mongo_session_service.storage.cooperative import with_gc_paused

Encoded = bytes | memoryview
"""A document that :func:`decode_documents` decodes."""


class _PlainInt(codec_options.TypeDecoder):
    """Reads 64-bit integers as the ``int`` they were written from."""

    bson_type = Int64

    def transform_bson(self, value: Int64) -> int:
        return int(value)


CODEC_OPTIONS: Final = codec_options.CodecOptions[dict[str, Any]](
    type_registry=codec_options.TypeRegistry([_PlainInt()]),
    # Otherwise one value of another tool would fail the whole read.
    datetime_conversion=codec_options.DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)
"""How every document is decoded."""

RAW: Final = codec_options.CodecOptions[RawBSONDocument](document_class=RawBSONDocument)
"""How documents are left encoded."""

_SIZE: Final = Struct("<i")
"""How arrays and documents begin: with their bytes, these four among them."""

_SMALL: Final = 262_144
"""Bytes of a reply that is decoded as a whole, in 1.5 ms."""

_DECODED_BYTES: Final = 65_536
"""Bytes decoded at once: each call of the decoder costs as much as four documents."""


def split_reply(reply: RawBSONDocument, name: str) -> tuple[list[bytes], Document]:
    """Split a reply into the documents of its first or next batch, and its cursor.

    The cursor is decoded, without the documents.
    """
    # The driver would make an object for each document, in four times the time.
    raw, marker = bytes(reply["cursor"].raw), b"\x04%b\0" % name.encode()
    begin = raw.index(marker)
    at = begin + len(marker)
    end = at + _SIZE.unpack_from(raw, at)[0]
    rest = raw[_SIZE.size : begin] + raw[end:]
    cursor = bson.decode(_SIZE.pack(_SIZE.size + len(rest)) + rest)
    documents = []
    at += _SIZE.size
    while at < end - 1:
        at = raw.index(0, at + 1) + 1  # behind an element's type and its number
        (size,) = _SIZE.unpack_from(raw, at)
        documents.append(raw[at : at + size])
        at += size
    return documents, cursor


def decode_small_reply(reply: RawBSONDocument) -> Document | None:
    """Decode a small reply's cursor with its documents; None for a large one."""
    if len(reply.raw) > _SMALL:
        return None
    found: Document = with_gc_paused(
        lambda: bson.decode(reply.raw, CODEC_OPTIONS)["cursor"]
    )
    return found


def decode_documents(documents: Iterable[Encoded]) -> Iterator[Document]:
    """Decode documents, each when it is asked for."""
    together: list[Encoded] = []
    size = 0
    for each in documents:
        together.append(each)
        size += len(each)
        if size >= _DECODED_BYTES:
            yield from bson.decode_all(b"".join(together), CODEC_OPTIONS)
            together, size = [], 0
    yield from bson.decode_all(b"".join(together), CODEC_OPTIONS)


def encode_document(document: Document) -> bytes:
    """Encode a document that was read decoded."""
    return bson.encode(document, codec_options=CODEC_OPTIONS)


@cache
def tags(name: str, count: int) -> list[bytes]:
    """Return how documents end whose last field is a number below ``count``."""
    return [
        b"\x10%b\0%b\0" % (name.encode(), _SIZE.pack(number)) for number in range(count)
    ]


def without_tag(document: bytes, tag: bytes) -> bytes:
    """Remove the last field of an encoded document."""
    end = 1 - len(tag)
    size = _SIZE.pack(len(document) + end)
    return size + document[_SIZE.size : end - 1] + b"\0"
