"""Columns of a batch in the form that data tools expect: ids as text, headers as maps. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmsg.errors import ProtocolError
from txmsg.wire.headers import unpack_headers

HEADERS: Final = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_UUID_LENGTH: Final = 36
_HYPHENS: Final = (8, 13, 18, 23)
_DIGITS: Final = np.array([at for at in range(_UUID_LENGTH) if at not in _HYPHENS])


def id_texts(transaction_ids: pa.Array, n: pa.Array) -> pa.Array:
    """Return ids of messages, as `message_id` writes them; null where there is no transaction id."""
    count = len(transaction_ids)
    ids = transaction_ids.fill_null(bytes(16)) if transaction_ids.null_count else transaction_ids
    data = np.frombuffer(ids.buffers()[1], np.uint8)[ids.offset * 16 :][: count * 16]
    text = np.full((count, _UUID_LENGTH), ord("-"), np.uint8)
    text[:, _DIGITS] = _HEX[data].reshape(count, 32)
    ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * _UUID_LENGTH)
    uuids = pa.StringArray.from_buffers(count, ends, pa.py_buffer(text))
    texts = pc.binary_join_element_wise(uuids, n.cast(pa.string()), ".")
    return pc.if_else(transaction_ids.is_valid(), texts, None) if transaction_ids.null_count else texts


def header_maps(packed: pa.Array) -> pa.Array:
    """Return headers as maps: empty without any, null for bytes that cannot be read. Equal ones are read once."""
    distinct = packed.dictionary_encode()
    maps = [_headers(headers) for headers in distinct.dictionary.to_pylist()]
    return pa.array([*maps, {}], HEADERS).take(distinct.indices.fill_null(len(maps)))


def _headers(packed: bytes) -> list[tuple[str, str]] | None:
    try:
        return sorted(unpack_headers(packed).items())  # a map of protobuf has no order of its own
    except ProtocolError:
        return None  # one odd message must not stop a query; it can be found by its offset
