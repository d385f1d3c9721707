"""Effects of a transaction exist if and only if its fence says COMMIT, after races, deaths and cancellations.

`make races` runs ten thousand of each driver; a failure names the seed that repeats its plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tests import unclosed
from tests.integration.fence.business import COMMIT, ROLLBACK, UNKNOWN
from tests.integration.fence.races import KnownEnd, Race, problems, report, run_async, run_sync

Run = Callable[[int, int], list[Race]]


@pytest.fixture
def judge(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], seed: int) -> Callable[[Run], None]:
    """Run the races and compare the results."""
    count: int = request.config.getoption("--fence-races")

    def judge(run: Run) -> None:
        began_s = time.monotonic()
        races = run(count, seed)
        with capsys.disabled():
            print(f"\n{request.node.name}: {len(races)} races in {time.monotonic() - began_s:.1f} s\n{report(races)}")
        found = problems(races)
        assert not found, f"{len(found)} with --seed={seed}; the first: {found[:3]}"
        answers = {answer for race in races for answer in race.answers}
        assert answers == {COMMIT, ROLLBACK, UNKNOWN}, "the races are none: checks met no transaction in some state"
        assert {KnownEnd.COMMITTED, KnownEnd.ROLLED_BACK, KnownEnd.REFUSED} <= {race.said for race in races}

    return judge


@pytest.mark.timeout(3600)
def test_effects_exist_if_and_only_if_the_fence_says_commit(business_url: str, judge: Callable[[Run], None]) -> None:
    judge(lambda count, seed: run_sync(business_url, _share(business_url, count), seed))


# aiomysql leaves the socket of a connection that was killed or cancelled to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(3600)
def test_effects_exist_if_and_only_if_the_fence_says_commit_with_asyncio(
    async_url: str, judge: Callable[[Run], None]
) -> None:
    blocking_url = async_url.replace("+asyncpg", "+psycopg").replace("+aiomysql", "+pymysql").replace("+aiosqlite", "")
    with unclosed.tasks_are_cancelled(async_url):
        judge(lambda count, seed: asyncio.run(run_async(async_url, blocking_url, _share(async_url, count), seed)))


def _share(url: str, count: int) -> int:
    return count // 4 if url.startswith("sqlite") else count  # its writers wait for each other, a long time
