"""Kafka groups: listed by nodes that have just become coordinators, and groups without topics."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from txmsg.errors import BrokerUnavailable, PermissionDenied, UnknownGroup
from txmsg.metaq.interface import GroupState
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.groups import KafkaGroups
from txmsg.metaq.kafka.location import parse_address


class Admin:
    """Answers with these errors, one at a time; then with two groups, one of another log."""

    def __init__(self, *codes: int) -> None:
        self._errors = [KafkaError(code) for code in codes]
        self.deleted: list[str] = []

    def describe_consumer_groups(self, names: list[str], **_: object) -> Any:
        return {name: SimpleNamespace(result=lambda: SimpleNamespace(members=[])) for name in names}

    def delete_consumer_groups(self, names: list[str], **_: object) -> Any:
        self.deleted += names
        return {name: SimpleNamespace(result=lambda: None) for name in names}

    delete_topics = delete_consumer_groups

    def list_consumer_groups(self, **_: object) -> Any:
        errors, self._errors = self._errors[:1], self._errors[1:]
        valid = [SimpleNamespace(group_id=name) for name in ("shop.mail", "other")]
        found = SimpleNamespace(errors=errors, valid=[] if errors else valid)
        return SimpleNamespace(result=lambda: found)


def groups(*codes: int, timeout_s: float = 60) -> KafkaGroups:
    return groups_of(Admin(*codes), None, None, timeout_s)


def groups_of(admin: Any, log: Any, offsets: Any, timeout_s: float = 60) -> KafkaGroups:
    clients = KafkaClients(parse_address("kafka://127.0.0.1:9/shop."), {}, timeout_s=timeout_s)
    return KafkaGroups(clients, admin, log, offsets)


def test_a_node_that_is_not_ready_is_queried_again() -> None:
    assert groups(KafkaError.COORDINATOR_LOAD_IN_PROGRESS).groups() == ["mail"]


class NoOffsets:
    """Offsets of groups whose topics Kafka has forgotten."""

    def kafka_group(self, group: str) -> str:
        return f"shop.{group}"

    def stored(self, _: str) -> dict[Any, Any]:
        return {}

    asked = stored


class Log:
    def ranges(self, queues: Sequence[Any]) -> dict[Any, Any]:
        assert not queues
        return {}


def test_a_listed_group_without_topics_is_shown_and_can_be_deleted() -> None:
    admin = Admin()
    found = groups_of(admin, Log(), NoOffsets())
    assert found.group("mail") == GroupState("mail", (), ())
    found.delete_group("mail")
    assert admin.deleted == ["shop.mail", "shop.mail%%asked", "shop.mail.txmsg-retry", "shop.mail.txmsg-dlq"]
    with pytest.raises(UnknownGroup):
        found.group("mails")


def test_a_lasting_error_is_raised() -> None:
    with pytest.raises(BrokerUnavailable, match="listing the groups"):
        groups(*[KafkaError.COORDINATOR_NOT_AVAILABLE] * 9, timeout_s=0).groups()
    with pytest.raises(PermissionDenied):
        groups(KafkaError.GROUP_AUTHORIZATION_FAILED).groups()
