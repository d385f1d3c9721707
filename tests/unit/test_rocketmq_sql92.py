"""SQL filters of RocketMQ: their matches, compared with SQLite, and the positions of syntax errors."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.rocketmq.sql92 import DEPTH_MAX, SEARCHES_MAX, FilterSyntaxError, parse_filter
from txmsg.rocketmq.sql92_tokens import TEXT_LENGTH_MAX

_ORDER = {"region": "eu", "price": "30", "paid": "TRUE", "TAGS": "new", "ratio": "-1.5e1", "quote": "it's", "empty": ""}


@pytest.mark.parametrize(
    "text",
    [
        "TRUE",
        "region IS NOT NULL AND region = 'eu'",
        "Region is null",
        "price > 5 and price>=30 AND price < 30.5 AND price <= 3E1 AND price = 30 AND price = 30.0",
        "price BETWEEN 30 AND 31 AND NOT (price BETWEEN 31 AND 32) AND price NOT BETWEEN -1 AND 1",
        "-15 = ratio AND ratio < -1 AND ratio <> +15 AND ratio > -16L",
        "TAGS IN ('old', 'new') AND TAGS NOT IN ('old')",
        "region = 'us' OR (price > 5 AND TAGS = 'new')",
        "NOT region = 'us' AND region <> 'us'",
        "quote = 'it''s' AND quote CONTAINS '''' AND quote STARTSWITH 'it' AND quote NOT ENDSWITH 't'",
        "empty = '' AND empty IS NOT NULL AND empty <> 'x'",
        "paid AND paid = TRUE AND paid <> FALSE AND ((paid))",
        "(price) > (5) AND ('eu') = region",
        "price = price",
        "TRUE OR missing = 1",
        "missing IS NULL AND NOT (FALSE AND missing = 1)",
    ],
)
def test_a_filter_matches(text: str) -> None:
    assert parse_filter(text).matches(_ORDER)
    assert not parse_filter(f"NOT ({text})").matches(_ORDER)


@pytest.mark.parametrize(
    "text",
    [
        *("missing = 1", "missing <> 1", "missing IN ('a')", "missing NOT IN ('a')", "missing > 5"),
        *("missing CONTAINS 'a'", "missing", "missing BETWEEN 1 AND 2", "1 = missing"),
        *("region > 5", "region = 5", "region <> 5", "price = TRUE", "region", "empty > 0"),
        "price > 5 AND missing = 1",
    ],
)
def test_an_unknown_result_and_its_negation_do_not_match(text: str) -> None:
    assert not parse_filter(text).matches(_ORDER)
    assert not parse_filter(f"NOT ({text})").matches(_ORDER)


def test_numbers_are_exact_and_non_numeric_texts_do_not_compare() -> None:
    big = 2**63 - 1
    assert parse_filter(f"a > {big - 1}").matches({"a": str(big)})
    assert not parse_filter(f"a = {big - 1}").matches({"a": str(big)})
    for text in ("1e999", "inf", "nan", " 1", "1_0", "٣", "1" * 500, "0x10", "+", ".", "1.2.3"):
        assert not parse_filter("a > 0 OR a <= 0").matches({"a": text}), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ends at character 1, where a property, a constant or ( is expected"),
        ("a >", "ends at character 4"),
        ("a = 1 b", "'b' at character 7: AND, OR or the end is expected"),
        ("a = 'x", "begins at character 5 does not end"),
        ('a = "x"', "'\"' at character 5: this is not understood"),
        ("a ; b", "';' at character 3"),
        ("a > 'x'", "'x' at character 5: only numbers"),
        ("region = beijing AND", "ends at character 21"),
        ("a BETWEEN 5 AND 1", "'BETWEEN' at character 3: its first number is greater"),
        ("a IN (1)", "'1' at character 7: a string in single quotes is expected"),
        ("a IN ()", "')' at character 7"),
        ("1 IN ('a')", "'1' at character 1: a property is expected on the left"),
        ("a NOT NULL", "'NULL' at character 7: BETWEEN, IN, CONTAINS"),
        ("a IS 5", "'5' at character 6: NULL is expected"),
        ("a = NULL", "'NULL' at character 5"),
        ("a LIKE 'x%'", "'LIKE' at character 3: AND, OR or the end is expected"),
        ("a + 1 > 2", "'+' at character 3"),
        ("'x'", "at character 1: a constant other than TRUE and FALSE"),
        ("(a > 1) = TRUE", "'(' at character 1: a condition begins here"),
        ("a = 1 = 1", "'=' at character 7"),
        ("(a = 1", "ends at character 7, where ) is expected"),
        ("a = 12x", "'1' at character 5"),
        ("a = - b", "'b' at character 7: a number is expected"),
        ("a = 1e999", "'1e999' at character 5: the number is too large"),
    ],
)
def test_a_syntax_error_is_reported_with_its_position(text: str, said: str) -> None:
    with pytest.raises(FilterSyntaxError) as refused:
        parse_filter(text)
    assert said in str(refused.value)


def test_length_depth_and_pattern_searches_are_bounded() -> None:
    searches = " OR ".join(["TAGS CONTAINS 'new'"] * SEARCHES_MAX)
    assert parse_filter(f"{searches} OR TAGS STARTSWITH 'n'").matches(_ORDER)
    deepest, longest = DEPTH_MAX * "(" + "paid" + DEPTH_MAX * ")", f"paid{(TEXT_LENGTH_MAX - 4) * ' '}"
    assert parse_filter(deepest).matches(_ORDER)
    assert parse_filter(longest).matches(_ORDER)
    for text, said in (
        (f"({deepest})", f"'(' at character {DEPTH_MAX + 1}: more than {DEPTH_MAX}"),
        ("NOT " * (DEPTH_MAX + 1) + "a", f"'NOT' at character {4 * DEPTH_MAX + 1}: more than {DEPTH_MAX}"),
        (f"{searches} OR a CONTAINS 'b'", f"'CONTAINS' at character {len(searches) + 7}: more than {SEARCHES_MAX}"),
        (f"{longest} ", f"{TEXT_LENGTH_MAX + 1} characters: at most {TEXT_LENGTH_MAX}"),
    ):
        with pytest.raises(FilterSyntaxError, match=re.escape(said)):
            parse_filter(text)


@given(st.text(max_size=60) | st.lists(st.sampled_from([*"()=<>,'-+ ", "a", "1", " NOT ", " IN "])).map("".join))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_filter(text)
    except FilterSyntaxError:
        return
    assert parsed.matches(_ORDER) in {True, False}


class Both(NamedTuple):
    """A condition in RocketMQ's syntax and in SQLite's."""

    rocketmq: str
    sqlite: str


def _same(text: str) -> Both:
    return Both(text, text)


def _texts(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


_STRINGS = st.text(st.sampled_from("ab' é_%"), max_size=3)
_NUMBERS = st.integers(-3, 3).map(str) | st.sampled_from(["0.5", "-1.5", "1e1", "2.", ".5", str(2**62), str(2**62 + 1)])
_NUMBER_NAMES = st.sampled_from(["n", "m"])
_TEXT_NAMES = st.sampled_from(["s", "t"])
_ORDERED = st.builds(
    lambda name, sign, number: _same(f"{name} {sign} {number}"),
    _NUMBER_NAMES,
    st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
    _NUMBERS,
)
_BETWEEN = st.builds(
    lambda name, maybe, low, more: _same(f"{name} {maybe} BETWEEN {low} AND {low + more}"),
    _NUMBER_NAMES,
    st.sampled_from(["", "NOT"]),
    st.integers(-3, 3),
    st.integers(0, 3),
)
_EQUAL = st.builds(
    lambda name, sign, text: _same(f"{name} {sign} {_texts(text)}"),
    _TEXT_NAMES,
    st.sampled_from(["=", "<>"]),
    _STRINGS,
)
_IN = st.builds(
    lambda name, maybe, texts: _same(f"{name} {maybe} IN ({', '.join(map(_texts, texts))})"),
    _TEXT_NAMES,
    st.sampled_from(["", "NOT"]),
    st.lists(_STRINGS, min_size=1, max_size=3),
)
_IN_SQLITE = {
    "CONTAINS": "instr({name}, {part}) > 0",
    "STARTSWITH": "substr({name}, 1, {length}) = {part}",
    "ENDSWITH": "length({name}) >= {length} AND substr({name}, length({name}) - {length} + 1) = {part}",
}
_PARTS = st.builds(
    lambda name, maybe, word, part: Both(
        f"{name} {maybe} {word} {_texts(part)}",
        f"{maybe} ({_IN_SQLITE[word].format(name=name, part=_texts(part), length=len(part))})",
    ),
    _TEXT_NAMES,
    st.sampled_from(["", "NOT"]),
    st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
    _STRINGS,
)
_IS_NULL = st.builds(
    lambda name, maybe: _same(f"{name} IS {maybe} NULL"), _NUMBER_NAMES | _TEXT_NAMES, st.sampled_from(["", "NOT"])
)
_FLAG = st.sampled_from([_same("f"), _same("f = TRUE"), _same("f <> TRUE"), _same("f = FALSE"), _same("TRUE")])
_CONDITIONS = st.recursive(
    st.one_of(_ORDERED, _BETWEEN, _EQUAL, _IN, _PARTS, _IS_NULL, _FLAG),
    lambda inner: st.one_of(
        st.builds(lambda one: Both(f"NOT ({one.rocketmq})", f"NOT ({one.sqlite})"), inner),
        st.builds(
            lambda one, word, other: Both(
                f"{one.rocketmq} {word} ({other.rocketmq})", f"{one.sqlite} {word} ({other.sqlite})"
            ),
            inner,
            st.sampled_from(["AND", "OR"]),
            inner,
        ),
    ),
    max_leaves=6,
)


@given(
    _CONDITIONS,
    st.fixed_dictionaries({}, optional={"n": _NUMBERS, "m": _NUMBERS, "s": _STRINGS, "t": _STRINGS}),
    st.sampled_from(["true", "FALSE", None]),
)
def test_a_filter_matches_the_rows_that_sqlite_selects(
    condition: Both, properties: dict[str, str], flag: str | None
) -> None:
    if flag is not None:
        properties["f"] = flag
    columns = {name: properties.get(name) for name in ("s", "t")}
    numbers = {name: None if name not in properties else _number(properties[name]) for name in ("n", "m")}
    truth = None if flag is None else flag == "true"
    with closing(sqlite3.connect(":memory:")) as database:
        [(selected,)] = database.execute(
            f"select ({condition.sqlite}) is true from (select :n as n, :m as m, :s as s, :t as t, :f as f)",
            {**columns, **numbers, "f": truth},
        )
    assert parse_filter(condition.rocketmq).matches(properties) == bool(selected), condition


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdecimal() else float(text)
