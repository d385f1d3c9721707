"""Cost of idle groups for a broker: the periodic steps of delivery with many of them, beside few.

The claim: a periodic step visits only what has something to do, so its cost does not depend on the number of groups.
Each group has a member that waits for messages of one topic. Each step of delivery runs alone some times over; its
CPU time (of the broker's process, not of the database) is measured, times how often it runs per second. Then one
message is sent: the exit status is 1 if it does not come once to each group.

    python -m benchmarks.idle_groups [--quick] [--json]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

from benchmarks.load import run
from benchmarks.surroundings import fresh_database, parser_of, private_server, progress_of
from txmsg.broker import migrate
from txmsg.broker.cluster import Leases, Membership
from txmsg.broker.delivery import Delivery, DeliveryConfig
from txmsg.broker.delivery.topics import DeliveryTopics
from txmsg.broker.delivery.values import MessageBatch, Receive
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.topics import TopicRegistry

TOPIC = "bench.idle"
QUEUES = 4
FEW = 100
ROUNDS = 20
NEVER_S = 3600.0
ARRIVE_S_MAX = 600.0
RATIO_MAX = 1.5
_SEND = """
insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at)
select s.id, %s, 0, gen_random_uuid(), 0, 'body', now() from txmsg.segment s where s.state = 'open'
"""


async def measure(url: str, groups: int, step: Callable[[], None]) -> tuple[dict[str, float], int]:
    """Return the CPU time of each step in ms per second, and the number of missing or wrong messages."""
    config = DeliveryConfig(lease_ttl_s=NEVER_S, statement_timeout_s=60.0)
    async with open_pool(url) as pool:
        leases = Leases("bench", config.lease_ttl_s, time.monotonic)
        membership = Membership(pool, leases, release="bench", schema_revision=migrate.REVISIONS[-1])
        registry = TopicRegistry(pool, auto_create=True, queues=QUEUES)
        delivery = Delivery(pool, membership, config, topics=DeliveryTopics(registry))

        def receive(name: str, wait_s: float) -> Awaitable[list[MessageBatch]]:
            return delivery.receive(
                Receive(
                    group=name,
                    client_id="c",
                    subscriptions=[(TOPIC, "*")],
                    count_max=QUEUES,
                    wait_s=wait_s,
                    visibility_timeout_s=NEVER_S,
                )
            )

        await membership.step_once()
        names = [f"idle-{number}" for number in range(groups)]
        for name in names:
            await receive(name, 0)
        waiting = [asyncio.ensure_future(receive(name, NEVER_S)) for name in names]
        await asyncio.sleep(0)
        step()
        costs: dict[str, float] = {}
        for step_once, interval_s, _ in delivery.maintenance.steps():
            spent_s = []
            for _ in range(ROUNDS):
                before_s = time.process_time()
                await step_once()
                spent_s.append(time.process_time() - before_s)
            costs[step_once.__name__.removesuffix("_once")] = 1000 * median(spent_s) / interval_s
        topic = await registry.ensure(TOPIC)
        async with pool.connection() as connection:
            await connection.execute(_SEND, (topic.queue_ids[0],))
        sending = asyncio.create_task(delivery.run())
        delivery.wake({topic.queue_ids[0]: 1})
        done, late = await asyncio.wait(waiting, timeout=ARRIVE_S_MAX)
        wrong = len(late) + sum(sum(len(batch.rows) for batch in task.result()) != 1 for task in done)
        for task in (*late, sending):
            task.cancel()
        await asyncio.wait([*late, sending])
        step()
        return costs, wrong


def main() -> int:
    """Measure, print, and check that a message wakes every group."""
    parser = parser_of(__doc__, "fewer groups")
    parser.add_argument("--groups", type=int, metavar="N", help="idle groups")
    options = parser.parse_args()
    many = options.groups or (2_000 if options.quick else 10_000)
    with private_server() as server, progress_of("idle groups", 4) as step:
        few_costs, few_wrong = run(measure(fresh_database(server, "few"), FEW, step))
        costs, wrong = run(measure(fresh_database(server, "many"), many, step))
    for name, cost in costs.items():
        print(f"{name:10}{cost:8.2f} ms/s with {many:,} groups{few_costs[name]:8.2f} ms/s with {FEW}")
    total, reference = sum(costs.values()), sum(few_costs.values())
    print(f"{'together':10}{total:8.2f} ms/s with {many:,} groups{reference:8.2f} ms/s with {FEW}")
    print(f"ratio {total / reference:.2f} (target <= {RATIO_MAX:g})")
    print(f"{wrong + few_wrong} messages missing or repeated")
    if options.json:
        figures = {"ms_per_s": round(total, 2), "reference_ms_per_s": round(reference, 2)}
        print(json.dumps({**figures, "ratio": round(total / reference, 3), "wrong": wrong + few_wrong}))
    return 1 if wrong + few_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
