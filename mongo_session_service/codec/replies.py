"""Stored documents as a reply holds them: encoded, and decoded a few at a time.

A reply of 16 MB takes a tenth of a second to decode, in which nothing else could run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import bson
from bson import codec_options
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from mongo_session_service.model.records import Document


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

_TOGETHER: Final = 65_536
"""Bytes decoded at once: each call of the decoder costs as much as four documents."""


def decoded(documents: Iterable[bytes | memoryview]) -> Iterator[Document]:
    """Encoded documents, each decoded shortly before it is asked for."""
    together: list[bytes | memoryview] = []
    size = 0
    for each in documents:
        together.append(each)
        size += len(each)
        if size >= _TOGETHER:
            yield from bson.decode_all(b"".join(together), CODEC_OPTIONS)
            together, size = [], 0
    yield from bson.decode_all(b"".join(together), CODEC_OPTIONS)
