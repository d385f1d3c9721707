"""The producers of a process: one for each database whose transactions send."""

from __future__ import annotations

import threading
from typing import Any

from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS

from txmsg.checker.fence import FenceCheckListener
from txmsg.client.producer import Producer
from txmsg.contrib.django.configuration import configuration
from txmsg.contrib.django.databases import engine_of
from txmsg.errors import StorageError
from txmsg.runtime.forks import renew_in_children


class _Producers:
    """Producers by the alias of their database. A forked child has the same ones, which connect again there."""

    def __init__(self) -> None:
        self._made: dict[str, Producer] = {}
        self._with_outbox: set[str] = set()
        self._declared: set[str] = set()
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._making = threading.Lock()

    def of(self, using: str) -> Producer:
        # Without the lock first: each call of a decorated function comes here.
        found = self._made.get(using)
        if found is not None:
            return found
        with self._making:
            if using not in self._made:
                made = _new(using)
                if using in self._with_outbox:
                    made._use_outbox()
                self._made[using] = made
            return self._made[using]

    def use_outbox(self, using: str) -> None:
        with self._making:
            self._with_outbox.add(using)
            if using in self._made:
                self._made[using]._use_outbox()

    def declare(self, using: str) -> None:
        with self._making:
            self._declared.add(using)

    def start_declared(self) -> None:
        for using in sorted(self._declared):
            try:
                self.of(using).start()
            except StorageError as exc:
                raise StorageError(
                    f"the producer of Django's database {using!r} cannot start: {exc}; tables that are absent are "
                    f"created by `manage.py migrate txmsg --database {using}`"
                ) from exc

    def close(self) -> None:
        with self._making:
            while self._made:
                self._made.popitem()[1].close()


def _new(using: str) -> Producer:
    chosen = configuration()
    return Producer(
        chosen.BROKERS,
        group=chosen.group_of(using),
        check_listener=FenceCheckListener(engine_of(using)),
        timeout_s=chosen.TIMEOUT_S,
        tls=chosen.TLS,
        token=chosen.TOKEN,
    )


_producers = _Producers()


def producer(using: str = DEFAULT_DB_ALIAS) -> Producer:
    """Return the producer for transactions of this database: created on first use, closed when the process ends.

    Call its `start` when the process starts, for example in wsgi.py, so that transactions that an earlier process left
    undecided are resolved at once. Raises ImproperlyConfigured for a wrong TXMSG, ConnectionDoesNotExist for a wrong
    alias.
    """
    return _producers.of(using)


def use_outbox(using: str) -> None:
    """Let the producer of this database relay its outbox, from its start on."""
    _producers.use_outbox(using)


def declare(using: str) -> None:
    """Record that functions of this process send in transactions of this database: a worker starts its producer."""
    _producers.declare(using)


def start_declared() -> None:
    """Start the declared producers, which answer check-backs of transactions that an earlier process left undecided.

    Waiting for the first send is not enough: a handler whose process died after its commit is skipped when its message
    is redelivered, and sends nothing.
    """
    _producers.start_declared()


def close_producers() -> None:
    """Close all producers; the next use creates new ones. For tests."""
    _producers.close()


def _forget_changed(*, setting: str, **_: Any) -> None:
    if setting in ("TXMSG", "DATABASES"):
        close_producers()


setting_changed.connect(_forget_changed, dispatch_uid="txmsg")
