"""Single pages: their contents and requests, without a broker."""

from __future__ import annotations

from tests.console.desk import desk_of, look_at
from txmsg.ops.console.pages import groups

_NAME = "txmsg_group_processed_messages_total"


async def test_group_without_metrics_has_no_rate() -> None:
    rates = {("idle", "t"): 0.0, ("busy", "t"): 5.0, ("busy", "u"): 1.0, ("(other)", "(other)"): 100.0}
    desk = desk_of(rates={(_NAME, labels): rate for labels, rate in rates.items()})

    async def rate_of(group: str) -> float | None:
        rate: float | None = (await groups._read_one(look_at(desk, {"group": group})))["rate"]
        return rate

    assert [await rate_of(group) for group in ("idle", "busy", "unnamed")] == [0.0, 6.0, None]
    await desk.watch.database.close()
