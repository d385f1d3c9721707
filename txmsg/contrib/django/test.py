"""Classes of tests: with a real broker, new for each test, and without one.

class Orders(BrokerTestCase):
    def test_a_mail_is_sent(self):
        self.client.post("/orders", {"id": 42})
        self.run_handlers()
        self.assertEqual(Mail.objects.count(), 1)

Those with a broker need `txmsg[broker]`, and start it once per process.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from txmsg.runtime.extras import lacking

try:
    from django.conf import settings
    from django.test import TransactionTestCase, override_settings
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(lacking(__name__, exc, ["django"]), name=exc.name) from exc

from txmsg.contrib.django.subscriptions import application
from txmsg.testing.memory import Memory

if TYPE_CHECKING:
    from txmsg.testing.broker import Broker
    from txmsg.testing.database import NotifyDatabase
    from txmsg.testing.host import BrokerHost

_TIMEOUT_S = 10.0


class MemoryMixin:
    """Sends the messages of each test to memory: `self.memory` has them. See txmsg.testing.Memory.

    A test takes no longer than without txmsg. With TestCase, whose transaction never commits, a message is sent when
    `self.captureOnCommitCallbacks(execute=True)` ends.
    """

    memory: Memory

    def setUp(self) -> None:
        """Start with an empty memory."""
        super().setUp()  # type: ignore[misc]
        self.memory = Memory()
        self.addCleanup(self.memory.clear)  # type: ignore[attr-defined]
        chosen = {**settings.TXMSG, "BROKERS": Memory.address}
        self.enterContext(override_settings(TXMSG=chosen))  # type: ignore[attr-defined]

    def run_handlers(self, *groups: str) -> int:
        """Deliver the sent messages once to the handlers of these groups (default: all). As `Memory.deliver`."""
        return self.memory.deliver(application(groups))


class BrokerMixin:
    """Gives each test a broker, `self.broker`, which the setting TXMSG names. See txmsg.testing.Broker.

    With TestCase, whose transaction never commits, a message is delivered when
    `self.captureOnCommitCallbacks(execute=True)` ends. The broker uses the PostgreSQL in the environment variable
    TXMSG_STORAGE, with a role that may create databases, or an embedded one.
    """

    broker: Broker
    broker_timeout_s: ClassVar[float] = _TIMEOUT_S

    def setUp(self) -> None:
        """Start the broker, on an emptied database, and end it when the test has ended."""
        from txmsg.runtime.postgres import connect
        from txmsg.testing.broker import Broker

        super().setUp()  # type: ignore[misc]
        host, database, address = _of_process(os.getpid())
        with ExitStack() as stack:
            database.empty()
            connection = stack.enter_context(connect(database.url))
            self.broker = Broker(host, address, database.url, connection, timeout_s=self.broker_timeout_s)
            stack.callback(self.broker.close)
            self.broker.start()
            # Ended first: the change of TXMSG closes producers, so that none waits for a broker that has gone.
            stack.enter_context(override_settings(TXMSG={**settings.TXMSG, "BROKERS": address}))
            self.addCleanup(stack.pop_all().close)  # type: ignore[attr-defined]

    def run_handlers(self, *groups: str, dead: int = 0, jump: bool = False) -> None:
        """Run the handlers of these groups (default: of all) until they have handled all messages; otherwise fail.

        dead, jump: as in `Broker.wait_until_idle`.
        """
        app = application(groups)
        with app:
            for group in sorted({str(each.group) for each in app._chosen()}):
                self.broker.wait_until_idle(group, dead=dead, jump=jump)


class BrokerTestCase(BrokerMixin, TransactionTestCase):
    """A TransactionTestCase with a broker: transactions commit as in production."""


@cache
def _of_process(_pid: int) -> tuple[BrokerHost, NotifyDatabase, str]:
    """Return the host, database and address of this process. _pid: part of the cache's key, because the workers of
    `manage.py test --parallel` are forked.
    """
    from txmsg.testing.database import NotifyDatabase
    from txmsg.testing.host import BrokerHost
    from txmsg.wire.listening import loopback
    from txmsg.wire.ports import own_port

    stack = ExitStack()
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txmsg-test-")))
    database = stack.enter_context(NotifyDatabase.made(os.environ.get("TXMSG_STORAGE"), directory / "postgres"))
    host = BrokerHost(directory / "broker.log")
    stack.callback(host.close)
    atexit.register(stack.close)
    return host, database, f"{loopback()}:{own_port()}"


__all__ = ["BrokerMixin", "BrokerTestCase", "MemoryMixin"]
