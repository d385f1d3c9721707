"""All forms of PostgreSQL's setting synchronous_standby_names."""

from __future__ import annotations

import pytest

from txmsg.broker.store.standbys import StandbyRule


@pytest.mark.parametrize(
    ("setting", "number", "names"),
    [
        ("*", 1, {"*"}),
        ("s1", 1, {"s1"}),
        ("s1, S2", 1, {"s1", "s2"}),
        ("1", 1, {"1"}),
        ("2 (s1,s2 , s3)", 2, {"s1", "s2", "s3"}),
        ("FIRST 2 (s1, s2)", 2, {"s1", "s2"}),
        ("first 1(*)", 1, {"*"}),
        ("Any 12 (*)", 12, {"*"}),
        ('ANY 1 ("node (a), 1", "say ""x""", b)', 1, {"node (a), 1", 'say "x"', "b"}),
        ('"1 (a)"', 1, {"1 (a)"}),
        ("\tANY\n1\n(\n a_$1 )\n", 1, {"a_$1"}),
        ('"any", "müller"', 1, {"any", "müller"}),
    ],
)
def test_every_form_of_the_setting_is_read(setting: str, number: int, names: set[str]) -> None:
    assert StandbyRule.of(setting) == StandbyRule(number, frozenset(names))


def test_standbys_count_by_case_insensitive_name_and_all_of_them_for_a_star() -> None:
    standbys = ["Berlin", "berlin", "paris"]
    assert StandbyRule.of("BERLIN, rome").count(standbys) == 2
    assert StandbyRule.of("rome").count(standbys) == 0
    assert StandbyRule.of("ANY 2 (rome, *)").count(standbys) == 3
