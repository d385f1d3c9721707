"""Brokers as a client knows them, whose calls are answered by the test instead of a network; the rest is real."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from txmsg.client.channel import Brokers, KnownBroker
from txmsg.wire.channel import Channel
from txmsg.wire.method import Method

Answer = Callable[[str, Method[Any, Any], Any], Awaitable[Any]]
"""Answers a request to the broker at an address."""


class AnsweredChannel(Channel):
    """A channel whose calls are answered by a function."""

    def __init__(self, address: str, answer: Answer) -> None:
        super().__init__(address)
        self._at = address
        self._answer = answer

    async def call(self, method: Method[Any, Any], request: Any, *, timeout_s: float) -> Any:
        assert isinstance(request, method.request)
        reply = await self._answer(self._at, method, request)
        assert isinstance(reply, method.reply)
        return reply


class AnsweredBrokers(Brokers):
    """The brokers at these addresses and those that the test adds."""

    async def answer(self, address: str, method: Method[Any, Any], request: Any) -> Any:
        """Return the reply of the broker at this address, or raise its error."""
        raise NotImplementedError

    def _new_broker(self, address: str, *, is_given: bool) -> KnownBroker:
        broker = super()._new_broker(address, is_given=is_given)
        broker.channel = AnsweredChannel(address, self.answer)
        return broker
