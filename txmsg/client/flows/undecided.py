"""Asks every Notify database which transactions it still holds undecided, before their fence rows are purged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from txmsg.client.channel import Brokers, retrying
from txmsg.errors import BrokerUnavailable, MisuseError, TxmsgError
from txmsg.message import TransactionId
from txmsg.wire.brokers import addresses_of
from txmsg.wire.codec import bytes_of_ids, ids_of_bytes
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

_TIMEOUT_S = 10.0

Held = Callable[[list[TransactionId]], set[TransactionId]]
HeldAsync = Callable[[list[TransactionId]], Awaitable[set[TransactionId]]]


def held_by(*notify_databases: str | Sequence[str], tls: TlsChoice = None, token: TokenChoice = None) -> Held:
    """Return the argument `held` of `Fence.purge`: it asks all these Notify databases, and raises if one is
    unreachable.

    Each is named by the addresses of its brokers, as for a Producer. Name every Notify database that the services of
    this business database send to, including one that is being retired: rows for other databases are not protected.
    tls, token: as for a Producer.
    """
    ask = held_by_async(*notify_databases, tls=tls, token=token)

    async def asked(ids: list[TransactionId]) -> set[TransactionId]:
        return await ask(ids)

    def held(ids: list[TransactionId]) -> set[TransactionId]:
        with ThreadPoolExecutor(1) as thread:  # the caller may stand on a loop: of an engine with an asyncio driver
            return thread.submit(asyncio.run, asked(ids)).result()

    return held


def held_by_async(
    *notify_databases: str | Sequence[str], tls: TlsChoice = None, token: TokenChoice = None
) -> HeldAsync:
    """`held_by` for `AsyncFence.purge`."""
    if not notify_databases:
        raise MisuseError("no Notify database is given: give the brokers of each")
    addresses = [addresses_of(brokers) for brokers in notify_databases]

    async def held(ids: list[TransactionId]) -> set[TransactionId]:
        replies = await asyncio.gather(*(_held_by_one(Brokers(each, tls=tls, token=token), ids) for each in addresses))
        return set().union(*replies)

    return held


async def _held_by_one(brokers: Brokers, ids: list[TransactionId]) -> set[TransactionId]:
    request = pb.HeldRequest(transaction_ids=bytes_of_ids(ids))
    try:
        async for attempt in retrying(_TIMEOUT_S):
            with attempt:
                reply = await brokers.call(Notify.held, request, timeout_s=_TIMEOUT_S)
    except TxmsgError as exc:
        raise BrokerUnavailable(
            f"the Notify database of {', '.join(brokers.addresses)} cannot report which transactions it holds ({exc}): "
            "fence rows are purged only if every database can; purge again when it is back"
        ) from exc
    finally:
        await brokers.close()
    return {TransactionId(transaction_id) for transaction_id in ids_of_bytes(reply.held)}
