"""The subscriptions of a project's handlers, and the application that a worker runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connections
from django.utils.module_loading import autodiscover_modules

from txmsg.client.app.application import Txmsg
from txmsg.client.app.dependencies import Injected
from txmsg.client.app.router import Router
from txmsg.consumer.failures import Retry
from txmsg.contrib.django.configuration import configuration
from txmsg.contrib.django.producers import start_declared
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage
from txmsg.message.typed.topic import Topic, name_of
from txmsg.runtime.user_function import is_coroutine
from txmsg.runtime.user_function import name_of as name_of_function

H = TypeVar("H", bound=Callable[..., Any])


class _DjangoRouter(Router):
    """Subscriptions of handlers whose transactions are Django's."""

    def _check_database(self, handler: Callable[..., Any], injected: Injected) -> None:
        raise MisuseError(
            f"{name_of_function(handler)} {injected.why_in_transaction}, for which an application has database=: in "
            "Django put @idempotent() below @subscribe, and send by txmsg.contrib.django.send(...) in the handler"
        )


_router = _DjangoRouter()


def subscribe(
    *topics: str | Topic[Any],
    group: str,
    tag: str = "*",
    concurrency: int | None = None,
    retry: Retry | None = None,
    batch: int | None = None,
    rate: float | None = None,
) -> Callable[[H], H]:
    """Decorate a handler of a consumer group, a plain function in the module `handlers` of an app.

    `manage.py txmsg_worker` runs it, on a thread with its own database connection. Its parameters are filled as those
    of `Txmsg.subscribe`: the message, or by their annotations the payload, fields of it, a logger, or what `Depends`
    names. If it raises, its message is retried later; changes that it has committed by then stay, unless it is
    `idempotent`.

    topics: as of `Txmsg.subscribe`: names, patterns such as "order.*", or `Topic` objects. tag: "*" for all, or tags
    such as "signup || import". concurrency: handlers at once in each process; default
    TXMSG["CONCURRENCY"]. retry, batch, rate: as for `Txmsg.subscribe`.
    """
    register = _router.subscribe(
        *topics,
        group=group,
        tag=tag,
        concurrency=configuration().CONCURRENCY if concurrency is None else concurrency,
        retry=retry,
        batch=batch,
        rate=rate,
    )

    def decorate(handler: H) -> H:
        if is_coroutine(handler):
            raise MisuseError(
                f"the handler of topic {shown(name_of(topics[0]))} is async def, in which transactions of Django do "
                "not work: make it def"
            )
        register(handler)
        return handler

    return decorate


@_router.middleware
@contextmanager
def _fresh_connections(_: ReceivedMessage) -> Iterator[None]:
    """Close connections of this thread that are too old or broken, before and after a handler, as for a request."""
    _close_old_connections()
    try:
        yield
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    """Close as Django does, except connections in a transaction: tests run handlers on the thread of a TestCase."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def application(groups: Collection[str] = ()) -> Txmsg:
    """Return the handlers of all modules `handlers` as an application, not yet started. groups: it runs only these."""
    autodiscover_modules("handlers")
    chosen = configuration()
    app = Txmsg(
        chosen.BROKERS,
        tls=chosen.TLS,
        token=chosen.TOKEN,
        visibility_timeout_s=chosen.VISIBILITY_TIMEOUT_S,
        close_timeout_s=chosen.CLOSE_TIMEOUT_S,
    )
    app.groups = groups
    app.include(_router)
    app.on_startup(start_declared)
    return app
