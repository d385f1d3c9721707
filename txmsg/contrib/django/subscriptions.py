"""What the handlers of a project subscribe to, and the consumers that a worker makes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from txmsg.client.consumer import Consumer
from txmsg.consumer.failures import Retry
from txmsg.consumer.subscriptions import GroupHandler
from txmsg.contrib.django.configuration import configuration
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage, check_name
from txmsg.runtime.user_function import check_takes

H = TypeVar("H", bound=Callable[[ReceivedMessage], Any])


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler, and what it gets."""

    topic: str
    group: str
    tag: str
    handler: Callable[[ReceivedMessage], Any]
    retry: Retry | None = None


_subscriptions: list[Subscription] = []


def subscribe(topic: str, *, group: str, tag: str = "*", retry: Retry | None = None) -> Callable[[H], H]:
    """Decorates a handler `(message)` of a consumer group, in the module `handlers` of an app.

    `manage.py txmsg_worker` runs it, on a thread with a database connection of its own. It is a plain function. If it
    raises, its message comes again later; what it has stored by then is its own affair, unless it is `idempotent`.

    tag: "*" for all, or tags such as "signup || import". retry: as of `Consumer.subscribe`.
    """
    check_name("topic", topic)
    check_name("consumer group", group)

    def register(handler: H) -> H:
        check_takes(f"the handler of topic {topic!r}", handler, "message")
        if any((each.topic, each.group) == (topic, group) for each in _subscriptions):
            raise MisuseError(f"group {group} has a handler for topic {topic!r} already: one per group and topic")
        _subscriptions.append(Subscription(topic, group, tag, handler, retry))
        return handler

    return register


def subscriptions(groups: Collection[str] = ()) -> list[Subscription]:
    """Those of all apps' modules `handlers`, or of these groups alone. Raises MisuseError for a group without any."""
    autodiscover_modules("handlers")
    there = sorted({each.group for each in _subscriptions})
    if unknown := sorted(set(groups) - set(there)):
        raise MisuseError(f"no handler is of group {unknown[0]!r}: there are {', '.join(there) or 'none'}")
    return [each for each in _subscriptions if not groups or each.group in groups]


def consumers(groups: Collection[str] = ()) -> list[Consumer]:
    """A consumer per group, not started."""
    chosen = configuration()
    made: dict[str, Consumer] = {}
    for each in subscriptions(groups):
        consumer = made.get(each.group)
        if consumer is None:
            consumer = made[each.group] = Consumer(
                chosen.BROKERS, group=each.group, concurrency=chosen.CONCURRENCY, tls=chosen.TLS, token=chosen.TOKEN
            )
        handler = each.handler.bound(each.group) if isinstance(each.handler, GroupHandler) else each.handler
        consumer.subscribe(each.topic, each.tag, retry=each.retry)(_with_fresh_connections(handler))
    return list(made.values())


def _with_fresh_connections(handler: Callable[[ReceivedMessage], Any]) -> Callable[[ReceivedMessage], Any]:
    """As for a request: connections that are too old, or broken, are not used."""

    @functools.wraps(handler)
    def call(message: ReceivedMessage) -> Any:
        close_old_connections()
        try:
            return handler(message)
        finally:
            close_old_connections()

    return call
