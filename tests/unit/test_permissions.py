"""The permission table has every method of every service and names existing request fields."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from tests.methods import Part, every_method, made, parts_of
from txmsg.administration.halves import HalfQuery
from txmsg.wire.access.permissions import PERMISSIONS, MissingRight, missing, missing_before
from txmsg.wire.access.rules import RIGHTS, Action, ResourceKind, Right, Rights, parse_rule
from txmsg.wire.v1 import metaq_pb2, txmsg_pb2

METHODS = every_method()


def rights(*rules: str) -> Rights:
    words = (rule.split() for rule in rules)
    return Rights(parse_rule("anna", action, resource) for action, resource in words)


def part_at(kind: Any, path: str) -> Part:
    """Return the field at a path, where `[]` marks lists."""
    first, _, rest = path.partition(".")
    part = parts_of(kind)[first.removesuffix("[]")]
    assert part.is_list == first.endswith("[]"), path
    return part_at(part.kind, rest) if rest else part


def test_permissions_and_methods_correspond() -> None:
    assert len(METHODS) > 60
    assert sorted(PERMISSIONS) == sorted(METHODS)


@pytest.mark.parametrize("method", sorted(PERMISSIONS))
def test_permissions_name_existing_fields_of_their_requests(method: str) -> None:
    for need in PERMISSIONS[method]:
        if need.path:
            assert part_at(METHODS[method].request, need.path).kind is str
        if need.when:
            attrgetter(need.when)(request_of(method))  # raises if there is no such field


@pytest.mark.parametrize("method", sorted(method for method, needs in PERMISSIONS.items() if needs))
def test_without_a_rule_an_empty_request_is_refused_unless_it_needs_no_right(method: str) -> None:
    refused = missing(rights(), method, request_of(method))
    asks = [
        need
        for need in PERMISSIONS[method]
        if not (need.when or need.optional)
        and (need.found or not need.path.count("[]") or need.right.kind is ResourceKind.CLUSTER)
    ]
    assert (refused is not None) == bool(asks)


def test_all_rights_allow_every_method() -> None:
    everything = rights(
        *(f"{action} {kind}{'' if kind is ResourceKind.CLUSTER else ':*'}" for action, kind in RIGHTS),
    )
    assert [method for method in METHODS if missing(everything, method, request_of(method))] == []


def request_of(method: str) -> Any:
    return made(METHODS[method].request)


SEND = txmsg_pb2.SendRequest(
    group="shop", batches=[txmsg_pb2.MessageColumns(topic="orders"), txmsg_pb2.MessageColumns(topic="bills")]
)


def test_a_send_to_one_topic_needs_its_right_and_one_to_several_is_refused_per_message() -> None:
    one = txmsg_pb2.SendRequest(batches=SEND.batches[1:])
    assert missing(rights("send topic:bills"), "Notify/Send", one) is None
    lacks = missing(rights("send topic:orders"), "Notify/Send", one)
    assert lacks == MissingRight(Right(Action.SEND, ResourceKind.TOPIC), "bills")
    assert missing(rights("send topic:orders"), "Notify/Send", SEND) is None


def test_half_messages_also_need_a_right_on_their_producer_group() -> None:
    half = txmsg_pb2.SendRequest(group="shop", half=True, batches=SEND.batches)
    assert missing(rights("send topic:*"), "Notify/Send", half) == MissingRight(
        Right(Action.SEND, ResourceKind.GROUP), "shop"
    )
    assert missing(rights("send topic:*", "send group:shop"), "Notify/Send", half) is None


def test_receiving_needs_topics_and_group() -> None:
    request = txmsg_pb2.ReceiveRequest(group="billing", subscriptions=[txmsg_pb2.Subscription(topic="orders")])
    assert missing(rights("receive topic:orders", "receive group:billing"), "Notify/Receive", request) is None
    assert missing(rights("receive topic:orders"), "Notify/Receive", request)
    assert missing(rights("receive group:billing"), "Notify/Receive", request)


@pytest.mark.parametrize(
    ("rule", "pattern", "is_allowed"),
    [
        ("order.*", "order.*", True),
        ("order.*", "order.p*", True),
        ("*", "order.*", True),
        ("*", "*", True),
        ("order.p*", "order.*", False),
        ("order.*", "*", False),
        ("order.paid", "order.*", False),
        ("order.", "order.*", False),
    ],
)
def test_a_pattern_needs_a_rule_with_its_prefix_or_a_shorter_one(rule: str, pattern: str, is_allowed: bool) -> None:
    request = txmsg_pb2.ReceiveRequest(group="g", subscriptions=[txmsg_pb2.Subscription(topic=pattern)])
    lacking = missing(rights(f"receive topic:{rule}", "receive group:g"), "Notify/Receive", request)
    assert (lacking is None) is is_allowed


def test_attaching_needs_rights_only_for_the_declared_roles_of_the_client() -> None:
    def frame(**kwargs: Any) -> txmsg_pb2.ClientFrame:
        return txmsg_pb2.ClientFrame(hello=txmsg_pb2.Hello(**kwargs))

    lacks_check = MissingRight(Right(Action.CHECK, ResourceKind.GROUP), "shop")
    assert missing(rights(), "Notify/Attach", frame(producer_group="shop")) is None
    assert missing(rights(), "Notify/Attach", frame(producer_group="shop", fence_ids=[bytes(16)])) == lacks_check
    assert missing(rights(), "Notify/Attach", frame(producer_group="shop", checks_unfenced=True)) == lacks_check
    assert missing(rights(), "Notify/Attach", frame(consumer_group="billing"))
    assert missing(rights("receive group:billing"), "Notify/Attach", frame(consumer_group="billing")) is None


def test_listing_needs_a_right_on_any_name_or_on_the_requested_name() -> None:
    some, none = HalfQuery(group="shop"), HalfQuery()
    assert missing(rights("describe group:bank"), "Admin/ListHalves", none) is None
    assert missing(rights("describe group:bank"), "Admin/ListHalves", some)
    assert missing(rights("describe group:shop"), "Admin/ListHalves", some) is None


def test_reading_the_audit_log_and_users_needs_separate_rights() -> None:
    for method in ("Audit/List", "Access/ListUsers", "Rules/List"):
        lacks = missing(rights("describe cluster"), method, request_of(method))
        assert lacks == MissingRight(Right(Action.READ, ResourceKind.CLUSTER), "")


def test_retries_and_dead_letters_in_a_log_belong_to_their_group() -> None:
    def append(topic: str) -> metaq_pb2.AppendRequest:
        return metaq_pb2.AppendRequest(head=metaq_pb2.AppendHead(batches=[metaq_pb2.AppendBatch(topic=topic)]))

    assert missing(rights("receive group:billing"), "MetaQ/Append", append("%RETRY%billing")) is None
    assert missing(rights("receive group:billing"), "MetaQ/Append", append("%DLQ%billing")) is None
    lacks = missing(rights("send topic:*", "receive group:bill"), "MetaQ/Append", append("%RETRY%billing"))
    assert lacks == MissingRight(Right(Action.RECEIVE, ResourceKind.GROUP), "billing")
    lacks = missing(rights("send topic:*", "receive group:*"), "MetaQ/Append", append("%APPENDS%"))
    assert lacks == MissingRight(Right(Action.ADMINISTER, ResourceKind.CLUSTER), "")


def test_actions_offered_before_a_request_are_those_that_it_is_allowed() -> None:
    alter, create = METHODS["Topics/Alter"].request, METHODS["Topics/Create"].request
    for rules in ([], ["administer topic:orders"], ["administer topic:ord*"], ["describe topic:*"]):
        mine = rights(*rules)
        assert missing_before(mine, "Topics/Alter", {"topic": "orders"}) == missing(
            mine, "Topics/Alter", made(alter, topic="orders")
        )
        asked_for = missing_before(mine, "Topics/Create", {})
        assert (asked_for is None) == (missing(mine, "Topics/Create", create(topic="orders")) is None)
    of_all = missing_before(rights("administer group:shop"), "DeadLetters/Purge", {"group": ""})
    assert of_all == MissingRight(Right(Action.ADMINISTER, ResourceKind.GROUP), "")
    assert missing_before(rights("describe cluster"), "Cluster/Drain", {"topic": "orders"}) == MissingRight(
        Right(Action.ADMINISTER, ResourceKind.CLUSTER), ""
    )
