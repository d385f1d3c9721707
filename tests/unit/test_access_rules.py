"""Access rules: their matches and their text form."""

from __future__ import annotations

import pytest

from txmsg.errors import MisuseError
from txmsg.wire.access.rules import (
    RIGHTS,
    Action,
    ResourceKind,
    Right,
    Rule,
    RuleSet,
    known_rules,
    parse_rule,
    rules_of,
)

SEND = Right(Action.SEND, ResourceKind.TOPIC)
DESCRIBE = Right(Action.DESCRIBE, ResourceKind.TOPIC)
ADMINISTER_CLUSTER = Right(Action.ADMINISTER, ResourceKind.CLUSTER)


def allowed(rules: RuleSet, right: Right, name: str, user: str = "anna", roles: tuple[str, ...] = ()) -> str | None:
    decision = rules.rights_of(user, roles).decide(right, name)
    assert decision.allowed == (decision.rule is not None)
    return None if decision.rule is None else str(decision.rule)


def test_nothing_is_allowed_without_a_rule() -> None:
    assert [right for right in RIGHTS if allowed(RuleSet(), right, "orders")] == []


def test_an_exact_name_allows_no_other_name() -> None:
    rules = RuleSet([parse_rule("anna", "send", "topic:orders")])
    assert allowed(rules, SEND, "orders") == "anna send topic:orders"
    assert [name for name in ("order", "orders2", "Orders", "", "*") if allowed(rules, SEND, name)] == []
    assert allowed(rules, Right(Action.SEND, ResourceKind.GROUP), "orders") is None
    assert allowed(rules, Right(Action.RECEIVE, ResourceKind.TOPIC), "orders") is None
    assert allowed(rules, SEND, "orders", user="ann") is None


def test_a_prefix_allows_the_names_that_begin_with_it() -> None:
    rules = RuleSet([parse_rule("anna", "send", "topic:orders*")])
    assert [name for name in ("orders", "orders.eu") if not allowed(rules, SEND, name)] == []
    assert [name for name in ("order", "my-orders", "") if allowed(rules, SEND, name)] == []


def test_only_a_rule_for_all_names_allows_a_request_without_a_name() -> None:
    assert allowed(RuleSet([parse_rule("anna", "send", "topic:*")]), SEND, "") == "anna send topic:*"


def test_every_right_on_a_name_includes_describing_it_and_nothing_else() -> None:
    for right in RIGHTS:
        resource = "cluster" if right.kind is ResourceKind.CLUSTER else f"{right.kind}:orders"
        name = "" if right.kind is ResourceKind.CLUSTER else "orders"
        rules = RuleSet([parse_rule("anna", right.action, resource)])
        found = {each for each in RIGHTS if allowed(rules, each, name)}
        assert found == {right, Right(Action.DESCRIBE, right.kind)}


def test_a_role_gives_its_rules_to_users_that_have_it() -> None:
    rules = RuleSet([parse_rule("role:shop", "send", "topic:orders")])
    assert allowed(rules, SEND, "orders", roles=("shop",)) == "role:shop send topic:orders"
    assert allowed(rules, SEND, "orders", roles=("bank",)) is None
    assert allowed(rules, SEND, "orders", user="shop") is None
    assert allowed(rules, SEND, "orders", user="role") is None


def test_the_role_admin_may_do_everything() -> None:
    assert [right for right in RIGHTS if not allowed(RuleSet(), right, "orders", roles=("admin",))] == []
    assert allowed(RuleSet(), ADMINISTER_CLUSTER, "", user="admin") is None


def test_having_a_right_for_any_name_needs_one_rule_with_it() -> None:
    rights = RuleSet([parse_rule("anna", "send", "topic:orders")]).rights_of("anna", ())
    assert rights.has(SEND)
    assert rights.has(DESCRIBE)
    assert not rights.has(Right(Action.DESCRIBE, ResourceKind.GROUP))


def test_a_rule_is_written_as_it_is_read() -> None:
    for words in (("anna", "send", "topic:orders*"), ("role:ops", "administer", "cluster"), ("b", "check", "group:%g")):
        assert str(parse_rule(*words)) == " ".join(words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("", "send", "topic:orders"), "not the name of a user"),
        (("role:", "send", "topic:orders"), "not the name of a user"),
        (("an na", "send", "topic:orders"), "not the name of a user"),
        (("anna", "send", "orders"), "use topic:NAME, group:NAME or cluster"),
        (("anna", "send", "topic:"), "use topic:NAME"),
        (("anna", "send", "topic:a*b"), "use topic:NAME"),
        (("anna", "send", "topic:**"), "use topic:NAME"),
        (("anna", "send", "cluster:x"), "use topic:NAME"),
        (("anna", "send", "cluster"), "use one of describe, read, administer"),
        (("anna", "check", "topic:orders"), "use one of send, receive, describe, read, administer"),
        (("anna", "fly", "group:g"), "use one of send, receive, check, describe, administer"),
    ],
)
def test_an_invalid_rule_is_refused(words: tuple[str, str, str], told: str) -> None:
    with pytest.raises(MisuseError, match=r".*") as caught:
        parse_rule(*words)
    assert told in str(caught.value)


def test_rules_of_a_file_are_lists_by_subject() -> None:
    table = {"anna": ["send topic:orders", "receive group:billing*"], "role:ops": ["administer cluster"]}
    assert [str(rule) for rule in rules_of(table)] == [
        "anna send topic:orders",
        "anna receive group:billing*",
        "role:ops administer cluster",
    ]
    with pytest.raises(MisuseError, match="does not name what a rule is for"):
        rules_of({"anna": ["send"]})


def test_equal_rules_count_once() -> None:
    rule = Rule("anna", Action.SEND, ResourceKind.TOPIC, "orders")
    assert RuleSet([rule, Rule("anna", Action.SEND, ResourceKind.TOPIC, "orders")]).all == (rule,)


def test_a_rule_of_a_newer_release_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    stored = [
        ("anna", "send", "topic", "orders"),
        ("anna", "replay", "topic", "orders"),
        ("anna", "send", "queue", "orders"),
    ]
    assert list(known_rules(stored)) == [parse_rule("anna", "send", "topic:orders")]
    assert "anna replay topic:orders" in caplog.text
    assert "anna send queue:orders" in caplog.text
