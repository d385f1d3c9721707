"""Tag expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.errors import InvalidName
from txmsg.message import is_tag
from txmsg.wire.tags import ALL_TAGS, TagExpression, parse_tags, wants_of


@pytest.mark.parametrize("text", ["*", "", "  * "])
def test_a_star_matches_all_tags_and_no_tag(text: str) -> None:
    expression = parse_tags(text)
    assert expression.is_all
    assert expression.matches("anything")
    assert expression.matches(None)


@pytest.mark.parametrize("text", ["signup || import", "signup||import", " import||signup "])
def test_alternatives_match_each_tag_and_nothing_else(text: str) -> None:
    expression = parse_tags(text)
    assert [expression.matches(tag) for tag in ("signup", "import", "sign", "*", "", None)] == [
        *(True, True),
        *(False, False, False, False),
    ]


@pytest.mark.parametrize("text", ["a ||", "|| a", "a || || b", "a | b", "a && b", "a || *", "a\0", "x" * 128])
def test_a_malformed_expression_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_tags(text)
    assert "tag" in str(caught.value)


@given(st.lists(st.text(min_size=1, max_size=8).filter(is_tag), min_size=1, max_size=3))
def test_an_expression_of_any_tags_matches_each(tags: list[str]) -> None:
    expression = parse_tags(" || ".join(tags))
    assert all(map(expression.matches, tags))
    assert parse_tags(str(expression)) == expression


def test_a_union_matches_what_any_of_its_parts_matches() -> None:
    assert TagExpression.union([parse_tags("a"), parse_tags("b || c")]) == parse_tags("a || b || c")
    assert TagExpression.union([parse_tags("a"), ALL_TAGS]) is ALL_TAGS
    assert not TagExpression.union([]).matches("a")


def test_an_expression_prints_as_it_is_written() -> None:
    assert str(parse_tags("b||a")) == "a || b"
    assert str(ALL_TAGS) == "*"


def test_a_topic_subscribed_twice_matches_both_expressions() -> None:
    wants = wants_of((("t", "a"), ("u", "*"), ("t", "b")))
    assert wants == {"t": parse_tags("a || b"), "u": ALL_TAGS}
