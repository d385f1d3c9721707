"""What single pages show and ask, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from txmsg.console.look import Look
from txmsg.console.pages import groups


async def test_a_group_that_figures_do_not_name_has_no_rate() -> None:
    async def notify(_: Any) -> Any:
        return SimpleNamespace(members=[], queues=[], settings=SimpleNamespace(retry_delays_s=None))

    rates = {("idle", "t"): 0.0, ("busy", "t"): 5.0, ("busy", "u"): 1.0, ("(other)", "(other)"): 100.0}
    snapshot = SimpleNamespace(each_rate=lambda _: rates)

    async def rate_of(group: str) -> float | None:
        watch = SimpleNamespace(snapshot=snapshot)
        look = SimpleNamespace(path={"group": group}, values={}, notify=notify, snapshot=snapshot, watch=watch)
        rate: float | None = (await groups._read_one(cast(Look, look)))["rate"]
        return rate

    assert [await rate_of(group) for group in ("idle", "busy", "unnamed")] == [0.0, 6.0, None]
