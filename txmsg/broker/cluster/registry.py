"""The registry of brokers for operators: brokers, the queues they deliver, draining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from txmsg.broker.store import brokers as brokers_store
from txmsg.broker.store import leases as leases_store
from txmsg.broker.store.connect import Pool, notify, session
from txmsg.errors import MisuseError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The cluster at one moment. leases: None unless requested."""

    shard: UUID
    schema_revision: str
    brokers: Sequence[brokers_store.BrokerRow]
    queue_counts: dict[str, int]
    queue_count: int
    leases: Sequence[leases_store.LeaseOfTopicRow] | None


class Registry:
    """Reads from the database, so that every broker answers the same."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def show(self, *, with_queues: bool) -> ClusterState:
        """The state of the cluster. Raises BrokerUnavailable."""
        async with session(self._pool) as conn:
            shard, revision, queue_count = await brokers_store.database_facts(conn)
            return ClusterState(
                shard=shard,
                schema_revision=revision,
                brokers=await brokers_store.all_brokers(conn),
                queue_counts=await leases_store.queue_counts(conn),
                queue_count=queue_count,
                leases=await leases_store.leases_by_topic(conn) if with_queues else None,
            )

    async def drain(self, broker_id: str) -> int:
        """Has a broker hand over all queues. Returns how many it still delivers. Raises MisuseError."""
        async with session(self._pool) as conn:
            is_alive, is_another_active = await brokers_store.drain(conn, broker_id)
            if not is_another_active:
                raise MisuseError(
                    f"no other broker is active that could take the place of {shown(broker_id)}: start one first, or "
                    "stop this one as it is"
                )
            _check_alive(broker_id, is_alive)
            await notify(conn, "brokers")
            return (await leases_store.queue_counts(conn)).get(broker_id, 0)

    async def resume(self, broker_id: str) -> None:
        """Lets a draining broker work again. Raises MisuseError."""
        async with session(self._pool) as conn:
            _check_alive(broker_id, await brokers_store.resume(conn, broker_id))
            await notify(conn, "brokers")

    async def forget(self, broker_id: str) -> None:
        """Forgets a dead broker, which nobody waits for any more. Raises MisuseError."""
        async with session(self._pool) as conn:
            if await brokers_store.forget(conn, broker_id):
                return
            if await brokers_store.registered(conn, broker_id) is None:
                raise MisuseError(
                    f"there is no broker {shown(broker_id)}: `txmsg cluster show` lists the brokers with their ids; "
                    "dead ones are forgotten after a day"
                )
            raise MisuseError(f"broker {shown(broker_id)} is alive: stop it first, and it is forgotten by that")


def _check_alive(broker_id: str, is_alive: bool) -> None:
    if not is_alive:
        raise MisuseError(
            f"no broker {shown(broker_id)} is alive: `txmsg cluster show` lists the brokers with their ids"
        )
