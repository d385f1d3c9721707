"""Stores and writers of a broker without a database: everything fails that the test does not answer itself."""

from __future__ import annotations

from txmsg.broker.config import BrokerConfig
from txmsg.broker.incarnation import Incarnation
from txmsg.broker.segments import Segments
from txmsg.broker.service import NotifyService
from txmsg.broker.store.connect import Pool
from txmsg.broker.store.topics import TopicRegistry
from txmsg.broker.writer import Writer

CONFIG = BrokerConfig(storage="postgresql://none/none")


def closed_pool() -> Pool:
    """Return a pool that was never opened: each use raises an error."""
    pool = Pool(open=False)
    pool.incarnation = Incarnation()
    return pool


class ClosedWriter(Writer):
    """A writer that is not running."""

    def __init__(self) -> None:
        super().__init__(CONFIG, Segments(closed_pool(), CONFIG), on_ends=lambda _: None)


class ClosedService(NotifyService):
    """The service of a broker with some methods answered by the test."""

    def __init__(self) -> None:
        topics = TopicRegistry(closed_pool(), auto_create=True, queues=1)
        super().__init__(topics, ClosedWriter(), ClosedWriter())
