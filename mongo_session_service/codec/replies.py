"""Stored documents as a reply holds them: encoded, and decoded a few at a time.

A reply of 16 MB takes a tenth of a second to decode, in which nothing else could run.
A small one is decoded as a whole, in two thirds of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import bson
from bson import codec_options
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from mongo_session_service.model.records import Document

Encoded = bytes | memoryview
"""A document that :func:`decoded` decodes."""


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

_SMALL: Final = 262_144
"""Bytes of a reply that is decoded as a whole, in 1.5 ms."""

_TOGETHER: Final = 65_536
"""Bytes decoded at once: each call of the decoder costs as much as four documents."""


class Found(NamedTuple):
    """Documents that were found."""

    encoded: list[Encoded]
    """Each of them, or the reply that holds all; empty if that is not known."""
    few: list[Document] | None = None
    """The documents, if they are decoded already, for they are few."""

    def documents(self) -> Iterable[Document]:
        """The documents, decoded as they are asked for."""
        return decoded(self.encoded) if self.few is None else self.few


def cursor(reply: RawBSONDocument) -> Document | None:
    """The cursor in a small reply, decoded; None if the reply is not small."""
    if len(reply.raw) > _SMALL:
        return None
    found: Document = bson.decode(reply.raw, CODEC_OPTIONS)["cursor"]
    return found


def decoded(documents: Iterable[Encoded]) -> Iterator[Document]:
    """Encoded documents, each decoded shortly before it is asked for."""
    together: list[Encoded] = []
    size = 0
    for each in documents:
        together.append(each)
        size += len(each)
        if size >= _TOGETHER:
            yield from bson.decode_all(b"".join(together), CODEC_OPTIONS)
            together, size = [], 0
    yield from bson.decode_all(b"".join(together), CODEC_OPTIONS)
