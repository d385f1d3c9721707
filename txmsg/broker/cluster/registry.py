"""The registry of brokers for operators: brokers, the queues they deliver, draining."""

from __future__ import annotations

from txmsg.administration.cluster import ClusterState
from txmsg.broker.store import brokers as brokers_store
from txmsg.broker.store import leases as leases_store
from txmsg.broker.store.connect import Pool, notify, session
from txmsg.errors import MisuseError, shown


class Registry:
    """Reads from the database, so that every broker answers the same."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def show(self, *, with_queues: bool) -> ClusterState:
        """Return the state of the cluster. Raises BrokerUnavailable."""
        async with session(self._pool) as conn:
            facts = await brokers_store.database_facts(conn)
            return ClusterState(
                shard=facts.shard,
                schema_revision=facts.revision,
                brokers=await brokers_store.all_brokers(conn),
                queues=facts.queues,
                queues_unassigned=facts.queues - facts.queues_assigned,
                leases=await leases_store.leases_by_topic(conn) if with_queues else None,
            )

    async def drain(self, broker_id: str) -> int:
        """Make a broker hand over all queues. Returns how many it still delivers. Raises MisuseError."""
        async with session(self._pool) as conn:
            is_alive, is_another_active = await brokers_store.drain(conn, broker_id)
            if not is_another_active:
                raise MisuseError(
                    f"no other broker is active that could take the place of {shown(broker_id)}: start one first, or "
                    "stop this one as it is"
                )
            _check_alive(broker_id, is_alive)
            await notify(conn, "brokers")
            return await leases_store.queue_count(conn, broker_id)

    async def resume(self, broker_id: str) -> None:
        """Let a draining broker work again. Raises MisuseError."""
        async with session(self._pool) as conn:
            _check_alive(broker_id, await brokers_store.resume(conn, broker_id))
            await notify(conn, "brokers")

    async def forget_broker(self, broker_id: str) -> None:
        """Delete a dead broker. Raises MisuseError."""
        async with session(self._pool) as conn:
            if await brokers_store.forget_broker(conn, broker_id):
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
