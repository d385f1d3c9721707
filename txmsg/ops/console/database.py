"""A Notify database, reached through its brokers; each call has a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from txmsg.errors import BrokerUnavailable
from txmsg.ops.console.calls import CALL_S_MAX, LimitedCalls
from txmsg.wire.access.tokens import new_token
from txmsg.wire.channel import Channel
from txmsg.wire.method import Method, ReplyT, RequestT
from txmsg.wire.tls import client_context

T = TypeVar("T")

ATTEMPT_S_MAX: Final = 2.5
"""Maximum seconds for the answer of one broker; then the next one is asked."""
_THREADS: Final = 8
_CHANNELS_MAX: Final = 64


class DatabaseBrokers:
    """Calls to the brokers of a database: those at `addresses`, and those that these report. Belongs to one loop.

    token: the visitor's; "" for none. Credentials of the environment are never used instead, because everyone who can
    reach the console would have their rights: neither a token nor a client certificate as a user.
    """

    def __init__(self, name: str, addresses: Sequence[str], *, token: str = "") -> None:
        self.name = name
        # Brokers look at a token before a certificate: a random one, sent at each connection, keeps the certificate of
        # the environment from standing for a user. Servers that admit every certificate ignore it.
        self.token = token or (new_token().text if client_context(None) is not None else "")
        self._given = list(addresses)
        self._others: list[str] = []
        self._last = self._given[0]
        self._channels: dict[str, Channel] = {}
        self._calls = LimitedCalls(f"brokers of {name}", _THREADS)
        self._loop = asyncio.get_running_loop()

    def learn(self, addresses: Sequence[str]) -> None:
        """Note living brokers, which are asked when no given one answers."""
        self._others = [each for each in addresses if each not in self._given][: _CHANNELS_MAX // 2]

    async def ask_any(self, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Return the reply of the first broker that answers. Raises the errors of errors.py."""
        deadline = self._loop.time() + CALL_S_MAX
        failed: BrokerUnavailable | None = None
        # The broker that answered last comes first, so that a dead one costs its timeout once and not at every call.
        for address in dict.fromkeys((self._last, *self._given, *self._others)):
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                break
            try:
                reply = await self.ask_at(address, method, request, timeout_s=min(ATTEMPT_S_MAX, left_s))
            except BrokerUnavailable as exc:
                failed = exc
            else:
                self._last = address
                return reply
        assert failed is not None
        raise failed

    async def ask_at(
        self, address: str, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float = ATTEMPT_S_MAX
    ) -> ReplyT:
        """Return the reply of one broker."""
        channel = self._channels.pop(address, None) or Channel(address, token=self.token)
        self._channels[address] = channel  # the last one is the one used last
        if len(self._channels) > _CHANNELS_MAX:  # addresses of brokers that are long gone
            await self._channels.pop(next(iter(self._channels))).close()
        return await channel.call(method, request, timeout_s=timeout_s)

    def ask_from_thread(self, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Call `ask_any` from a thread, as the administration does. The loop must not stop meanwhile."""
        call = asyncio.run_coroutine_threadsafe(self.ask_any(method, request), self._loop)
        try:
            # A second more than the call itself takes, so that its own error arrives and not this timeout.
            return call.result(CALL_S_MAX + 1)
        except TimeoutError as exc:
            call.cancel()
            raise self._calls.unknown() from exc

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking `work` on a thread. Returns its result: see `LimitedCalls.run`."""
        return await self._calls.run(work)

    async def close(self) -> None:
        """End the connections; running calls fail. Closing twice is fine."""
        for channel in list(self._channels.values()):
            await channel.close()
        self._calls.close()
