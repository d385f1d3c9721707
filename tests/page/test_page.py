"""The page of the trade dashboard: its texts, and that all shown values exist."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from examples.trade_dashboard.figures import Batch, Entry, Figures, Total
from examples.trade_dashboard.latency import Latency
from examples.trade_dashboard.page import PAGE, shown
from txmsg.ops.page.page import ASSETS

NOON = datetime(2026, 11, 11, 12, tzinfo=UTC)
HTML = PAGE.html()
BODY = (PAGE.directory / "body.html").read_text()


def figures_of(*, orders: int = 10, paid: int = 9, seconds: tuple[Entry[datetime], ...] = ()) -> Figures:
    total = Total(
        orders=orders,
        paid=paid,
        shipped=3,
        refunded=1,
        turnover_cents=123_456,
        late_events=0,
        bad_messages=0,
        through_at=NOON + timedelta(milliseconds=300),
        written_at=NOON + timedelta(milliseconds=700),
    )
    return Figures(
        total=total,
        seconds=seconds,
        minutes=(),
        provinces=(Entry("guangdong", 6, 5, 80_000), Entry("atlantis", 4, 4, 43_456)),
        categories=(Entry("mobile", 10, 9, 123_456),),
        sellers=(Entry("mobile-07", 10, 9, 123_456),),
        latency_now=Latency(events=9, p50_ms=400, p99_ms=800),
        latency=Latency(events=9, p50_ms=420, p99_ms=900),
        batch=Batch(batch_id=4, at=NOON, messages=23, batch_ms=250),
    )


def second(age_s: int, orders: int) -> Entry[datetime]:
    return Entry(NOON - timedelta(seconds=age_s), orders, orders - 1, 100 * orders)


def test_every_text_exists_in_both_languages_and_every_used_text_exists() -> None:
    found = re.search(r'<script type="application/json" id="words">(.*?)</script>', HTML)
    assert found
    words: dict[str, dict[str, str]] = json.loads(found[1])
    assert {key for key, each in words.items() if not (each["en"].strip() and each["zh"].strip())} == set()
    named = set(re.findall(r'data-word="(\w+)"', HTML))
    assert len(named) > 20
    assert named <= words.keys()


def test_page_has_no_unused_texts() -> None:
    code = "".join(path.read_text() for path in [*ASSETS.glob("*.js"), *ASSETS.glob("*.html")]) + BODY
    assert {key for key in PAGE.words if key not in code and not key.startswith("part_")} == set()


def test_every_value_shown_by_the_page_is_in_the_figures() -> None:
    bulletin: dict[str, Any] = {"figures": shown(figures_of(seconds=(second(1, 5),)))}
    paths = [path for path in re.findall(r' value="([\w.]+)"', BODY) if not path.startswith("measures.")]
    assert len(paths) > 15
    for path in paths:
        found: Any = bulletin
        for name in path.split("."):
            assert name in found, path
            found = found[name]
        assert found is not None, path
    json.dumps(bulletin)


def test_texts_are_embedded_as_escaped_data() -> None:
    document = PAGE.html()
    assert document.count("</script>") == 3
    assert "$" not in document.replace("¥", "")


def test_totals_are_shown_as_they_were_counted() -> None:
    found = shown(figures_of())
    expected = asdict(figures_of().total)
    del expected["through_at"], expected["written_at"]
    assert found["total"] == expected
    assert found["conversion"] == 0.9


def test_conversion_and_rate_are_absent_before_the_first_order() -> None:
    found = shown(figures_of(orders=0, paid=0))
    assert (found["conversion"], found["orders_per_second"]) == (None, None)
    assert found["seconds"] == {"from": 0, "orders": [], "paid": []}


def test_seconds_without_orders_are_zero_and_the_current_second_is_left_out() -> None:
    found = shown(figures_of(seconds=(second(5, 7), second(3, 9), second(0, 2))))
    assert found["seconds"] == {
        "from": int(NOON.timestamp()) - 5,
        "orders": [7, 0, 9, 0, 0],
        "paid": [6, 0, 8, 0, 0],
    }
    assert found["orders_per_second"] == 16 / 5


def test_codes_are_shown_by_name_and_unknown_codes_as_they_are() -> None:
    found = shown(figures_of())
    assert [each["name"] for each in found["provinces"]] == [
        {"en": "Guangdong", "zh": "广东"},
        {"en": "atlantis", "zh": "atlantis"},
    ]
    assert found["sellers"][0]["name"] == {"en": "Mobile store 7", "zh": "手机数码旗舰店 7"}
    assert found["provinces"][0]["turnover_cents"] == 80_000


def test_release_changes_only_with_files_that_browsers_load() -> None:
    assert PAGE.release == type(PAGE)(directory=PAGE.directory, words=PAGE.words).release
    assert PAGE.release != type(PAGE)(directory=PAGE.directory, words={"title": PAGE.words["title"]}).release


def test_vendored_chart_library_equals_its_release() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (ASSETS / "uplot").iterdir()}
    assert found == {
        "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }  # uPlot 1.6.32
