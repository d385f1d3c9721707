"""Records of Kafka as messages, in expressions of Spark's SQL: the same as `metaq.kafka.record.received`. Pure.

Rows are made in the JVM: no Python is between Kafka and a query.
"""

from __future__ import annotations

from typing import Final

from txmsg.metaq.kafka.record import ESCAPE, KEY, PLACE, RESERVED, TAG, TIMES

_PLACE: Final = "concat(topic, '/', partition)"
"""What a record's header txmsg-place is or begins with, unless the record is foreign."""
_IS_IN_PLACE: Final = (
    f"exists(slice(filter(headers, header -> header.key = '{PLACE}'), 1, 1), header -> "
    f"cast(header.value as string) = {_PLACE} or startswith(cast(header.value as string), concat({_PLACE}, '/')))"
)
OWN: Final = f"if({_IS_IN_PLACE}, headers, null) as txmsg_own"
"""A column that `expressions` need beside those of Spark's source: the headers, and null for a foreign record.

It is selected first, because Spark then evaluates it once per row.
"""


def expressions(prefix: str) -> dict[str, str]:
    """By the names of our columns; over OWN and those of Spark's Kafka source, with the option includeHeaders."""
    key = _header(KEY)
    return {
        "topic": f"substring(topic, {len(prefix) + 1})",
        "queue": "partition",
        "offset": _number(_OFFSET, PLACE, otherwise="offset"),
        "key": f"if({key} is null, {_RECORD_KEY}, nullif({key}, ''))",
        "tag": f"nullif({_header(TAG)}, '')",
        "ordering_key": f"if({key} is null, null, {_RECORD_KEY})",
        "value": "coalesce(value, X'')",
        "headers": _HEADERS,
        "born_at": _time(0),
        "stored_at": _time(1),
    }


def _header(name: str) -> str:
    """A header of txmsg as text; null without it, and in a foreign record."""
    return f"cast(get(filter(txmsg_own, header -> header.key = '{name}'), 0).value as string)"


def _number(text: str, header: str, *, otherwise: str) -> str:
    """The whole number in a header, and `otherwise` without it. A query fails at one that is not a number."""
    error = f"concat('a record of Kafka has the header {header} with ', {text}, ', which txmsg does not write')"
    return f"if({text} is null, {otherwise}, coalesce(try_cast({text} as bigint), raise_error({error})))"


def _time(place: int) -> str:
    """born_at (0) or stored_at (1); the record's timestamp has milliseconds only."""
    text = f"get(split({_header(TIMES)}, ' '), {place})"
    return f"timestamp_micros({_number(text, TIMES, otherwise='unix_micros(timestamp)')})"


def _text(column: str) -> str:
    """Bytes as text; what is not UTF-8, as others may write it, would stop a query that shows it to Python."""
    return f"make_valid_utf8(cast({column} as string))"


_OFFSET: Final = f"if({_header(PLACE)} = {_PLACE}, null, substring({_header(PLACE)}, length({_PLACE}) + 2))"
_RECORD_KEY: Final = f"nullif({_text('key')}, '')"
_RESERVED: Final = ", ".join(f"'{name}'" for name in sorted(RESERVED))
# Others may write a header twice, of which the last one counts; a map of Spark refuses two.
_OWN: Final = (
    f"filter(headers, (header, at) -> (txmsg_own is null or header.key not in ({_RESERVED})) "
    "and not exists(slice(headers, at + 2, size(headers)), later -> later.key = header.key))"
)
_NAME: Final = (
    f"if(txmsg_own is not null and startswith(header.key, '{ESCAPE}'), substring(header.key, {len(ESCAPE) + 1}), "
    "header.key)"
)
_VALUE: Final = f"coalesce({_text('header.value')}, '')"
_HEADERS: Final = (
    f"coalesce(map_from_entries(array_sort(transform({_OWN}, header -> struct({_NAME}, {_VALUE})))), "
    "cast(map() as map<string, string>))"
)
