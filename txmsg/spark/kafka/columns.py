"""Records of Kafka as messages, in expressions of Spark's SQL: the same as `metaq.kafka.record.received`. Pure.

Rows are made in the JVM: no Python is between Kafka and a query.
"""

from __future__ import annotations

from typing import Final

from txmsg.metaq.format.unreadable import TIME_US_MAX, TIME_US_MIN
from txmsg.metaq.kafka.record import ESCAPE, KEY, PLACE, RESERVED, TAG, TIMES

_PLACE: Final = "concat(topic, '/', partition)"
"""The value, or the beginning of the value, of the header txmsg-place of records that are not foreign."""
_AFTER_PLACE: Final = f"substring(cast(header.value as string), length({_PLACE}) + 2)"
_IS_IN_PLACE: Final = (
    f"exists(slice(filter(headers, header -> header.key = '{PLACE}'), 1, 1), header -> "
    f"cast(header.value as string) = {_PLACE} or (startswith(cast(header.value as string), concat({_PLACE}, '/')) "
    f"and rlike({_AFTER_PLACE}, '^[0-9]+$') and try_cast({_AFTER_PLACE} as bigint) is not null))"
)
OWN: Final = f"if({_IS_IN_PLACE}, headers, null) as txmsg_own"
"""A column that `expressions` need beside those of Spark's source: the headers, and null for a foreign record.

It is selected first, because Spark then evaluates it once per row.
"""


def expressions(prefix: str) -> dict[str, str]:
    """Return the expression of each of our columns; over OWN and the columns of Spark's Kafka source with
    includeHeaders.

    A query fails at a record whose column cannot be read; the error names it.
    """
    key = _header(KEY)
    return {
        "topic": f"substring(topic, {len(prefix) + 1})",
        "queue": "partition",
        "offset": f"coalesce(cast({_OFFSET} as bigint), offset)",
        "key": f"if({key} is null, {_RECORD_KEY}, nullif({_checked(key, _is_text(key), KEY)}, ''))",
        "tag": f"nullif({_checked(_header(TAG), _is_text(_header(TAG)), TAG)}, '')",
        "ordering_key": f"if({key} is null, null, {_RECORD_KEY})",
        "value": "coalesce(value, X'')",
        "headers": _HEADERS,
        "born_at": f"timestamp_micros({_checked(_us(0), _is_time(0), _TIME)})",
        "stored_at": f"timestamp_micros({_checked(_us(1), _is_time(1), _TIME)})",
    }


def readable() -> str:
    """Return a condition that is true for records whose columns can all be read; over the same columns."""
    texts = (f"{_is_text(_header(name))}" for name in (KEY, TAG))
    return " and ".join((*texts, _is_time(0), _is_time(1)))


def _checked(value: str, is_right: str, what: str) -> str:
    where = "concat('offset ', offset, ' of partition ', partition, ' of topic ', topic, ' of Kafka cannot be read: "
    way_on = "; skip such records by failOnDataLoss=false, or look for who writes them"
    return f"if({is_right}, {value}, raise_error({where}{what} is not what txmsg can read{way_on}')))"


def _header(name: str) -> str:
    """Return the expression of a header of txmsg as text; null without it, and in a foreign record."""
    return f"cast(get(filter(txmsg_own, header -> header.key = '{name}'), 0).value as string)"


def _is_text(text: str) -> str:
    return f"({text} is null or is_valid_utf8({text}))"


def _us(place: int) -> str:
    """Return the expression of born_at (0) or stored_at (1) in microseconds; the record's timestamp has milliseconds
    only.
    """
    text = _header(TIMES)
    return f"if({text} is null, unix_micros(timestamp), try_cast(get(split({text}, ' '), {place}) as bigint))"


def _is_time(place: int) -> str:
    return f"coalesce({_us(place)} between {TIME_US_MIN} and {TIME_US_MAX}, false)"


def _text(column: str) -> str:
    """Return the expression of bytes as valid text; other bytes would stop a query that shows them to Python."""
    return f"make_valid_utf8(cast({column} as string))"


_OFFSET: Final = f"if({_header(PLACE)} = {_PLACE}, null, substring({_header(PLACE)}, length({_PLACE}) + 2))"
_TIME: Final = "its time"
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
