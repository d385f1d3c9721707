"""The offset of a queue at a time, with a database clock stepped back and forth: no message of that time is skipped."""

from __future__ import annotations

import random

from tests.integration.batch_harness import Notify, columns_of
from tests.integration.test_memory import memory_topic
from tests.model.model import Defect
from tests.model.plant import Plant
from txmsg.broker.store.batch import WriteBatch

_CLOCK = "clock_timestamp()"
_SET_CLOCK = "(clock_timestamp() + (select c.ahead from public.clock c))"
BATCHES = 80
TIMES = 40


async def clock_that_can_be_set(db: Notify) -> None:
    await db.connection.execute("create table public.clock as select interval '0' as ahead")
    functions = ("apply_batch", "release_due")
    Plant("a clock", Defect.LOST, tuple((function, _CLOCK, _SET_CLOCK) for function in functions)).install(db.url)


async def test_a_binary_search_by_time_equals_a_full_scan(db: Notify, seed: int) -> None:
    at = random.Random(seed)
    await clock_that_can_be_set(db)
    queues = [*db.queues[:2], *await memory_topic(db.url)]
    segment, steps = 1, 0
    for _ in range(BATCHES):
        match at.randrange(14):
            case 0:
                await db.connection.execute(f"select txmsg.rotate({segment})".encode())
                await db.connection.execute("select txmsg.add_segment()")
                segment += 1
            case 1 | 2 | 3 | 5:  # by hours, or by less than a batch takes
                seconds = at.choice([-7200, -3600, -60, -0.001, 0.001, 60, 3600])
                await db.connection.execute(
                    "update public.clock set ahead = ahead + make_interval(secs => %s)", (seconds,)
                )
                steps += seconds < 0
            case 4:
                columns = columns_of([at.choice(queues)], producer=db.producer)
                columns.deliver_at_us = [columns.born_at_us[0] + 100 * 3_600_000_000]
                await db.apply(WriteBatch(plain=columns), segment=segment, previous=segment - 1)
                await db.connection.execute("update txmsg.scheduled set deliver_at = now() - interval '9 days'")
                await db.connection.execute(
                    f"call txmsg.release_due({segment}, null, 10, 1000, null, null, null, null, null)".encode()
                )
            case _:
                columns = columns_of(at.choices(queues, k=at.randint(1, 9)), producer=db.producer)
                await db.apply(WriteBatch(plain=columns), segment=segment, previous=segment - 1)
    stored = [row[0] for row in await db.rows("select distinct stored_at from txmsg.message")]
    for queue in queues:
        for time in at.sample(stored, min(TIMES, len(stored))):
            for by_us in (-1, 0, 1):
                found = await db.connection.execute(
                    "with asked as (select %(time)s::timestamptz + %(by_us)s * interval '1 us' as at) "
                    "select a.at, txmsg.offset_at(%(queue)s, a.at), (select min(m.queue_offset) from txmsg.message m "
                    " where m.queue = %(queue)s and m.stored_at >= a.at) from asked a",
                    {"time": time, "by_us": by_us, "queue": queue},
                )
                for when, by_halves, by_looking in await found.fetchall():
                    assert by_halves == by_looking, f"queue {queue} at {when}, seed {seed}, {steps} steps back"
    ((noted,),) = await db.rows("select count(*) from txmsg.clock_step")
    assert noted <= steps * len(queues), "without a step nothing is noted"
