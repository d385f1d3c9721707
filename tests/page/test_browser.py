"""The page of the trade dashboard in a real browser: it shows the database's values, and marks stale ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from examples.trade_dashboard.names import PROVINCES
from examples.trade_dashboard.page import PAGE
from tests.page.conftest import ShownPage, ShowPage
from txmsg.ops.demo.trades.page_totals import seen

WAIT_MS = 60_000
STALE_AFTER_S = 2.0
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WALL, LAPTOP, SMALL, PHONE = (1920, 1080), (1366, 768), (1024, 768), (390, 844)
TURNOVER = 'rolling-number[value="figures.total.turnover_cents"]'
GREAT = 99_999_999_999_99
"""A turnover in cents with the maximum number of digits."""

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def shown(show_page: ShowPage) -> Iterator[ShownPage]:
    """A page server for all tests of this module."""
    with show_page("--stale-after", str(STALE_AFTER_S)) as shown:
        yield shown


@dataclass
class Window:
    """An open page, and the errors of its browser."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)

    def count(self, selector: str) -> int:
        """Return the number shown by an element."""
        return int(self.page.locator(selector).get_attribute("data-value") or -1)

    def wait(self, claim: str, argument: object = None) -> None:
        """Return once a JavaScript function of one argument is true. Not an async one: any promise counts as true."""
        self.page.wait_for_function(claim, arg=argument, timeout=WAIT_MS)

    def screenshot(self, name: str) -> None:
        """Save a screenshot for people to look at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


Look = Callable[..., Window]


@pytest.fixture
def look(browser: Browser, shown: ShownPage) -> Iterator[Look]:
    """Open the page in its own window. In the end no browser has reported errors or contacted other hosts."""
    windows: list[Window] = []

    def open_window(
        *,
        size: tuple[int, int] = LAPTOP,
        scheme: Literal["light", "dark"] = "light",
        locale: str = "en-GB",
        motion: Literal["reduce", "no-preference"] = "reduce",
        bulletin: dict[str, Any] | None = None,
    ) -> Window:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, locale=locale, reduced_motion=motion
        )
        context.set_default_timeout(WAIT_MS)
        window = Window(context.new_page())
        windows.append(window)
        window.page.on("console", lambda message: window.complaints.append(message.text))
        window.page.on("pageerror", lambda error: window.complaints.append(str(error)))
        window.page.on("request", lambda request: window.requests.add(request.url))
        if bulletin is not None:
            window.page.route("**/events", lambda route: _answer(route, bulletin))
        window.page.goto(shown.page.url)
        return window

    yield open_window
    for window in windows:
        window.page.context.close()
    assert [each for window in windows for each in window.complaints] == []
    elsewhere = {url for window in windows for url in window.requests if not url.startswith((shown.page.url, "data:"))}
    assert elsewhere == set()


def _answer(route: Route, bulletin: dict[str, Any]) -> None:
    route.fulfill(content_type="text/event-stream", body=f"retry: 200\n\ndata: {json.dumps(bulletin)}\n\n")


def test_counter_shows_the_database_total_and_stalled_figures_are_marked_stale(look: Look, shown: ShownPage) -> None:
    window = look(motion="no-preference")
    status = window.page.locator("live-status")
    with shown.trading():
        window.wait("selector => document.querySelector(selector).dataset.value > 0", TURNOVER)
        before = window.count(TURNOVER)
        window.wait(f"before => document.querySelector('{TURNOVER}').dataset.value > before", before)
        window.wait(
            """() => [...document.querySelectorAll("rolling-number .digit > span")].some((strip) => {
                const place = (parseFloat(strip.style.transform.slice("translateY(".length)) / -100) * 11;
                return Math.abs(place - Math.round(place)) > 0.05;
            })"""
        )
        expect(status).to_have_text("Live")
    turnover_cents = shown.total("turnover_cents")
    window.wait(f"cents => document.querySelector('{TURNOVER}').dataset.value == cents", turnover_cents)
    assert shown.page.bulletin()["figures"]["total"]["turnover_cents"] == turnover_cents
    expect(window.page.locator(TURNOVER)).to_have_attribute("aria-label", f"¥{turnover_cents / 100:,.2f}")
    window.wait(_DIGITS_SAY, f"{turnover_cents}")
    counter = window.page.locator(TURNOVER)
    assert seen(counter) == turnover_cents
    window.wait(_STANDS)  # else the roll's last frame puts the digit back
    counter.evaluate(_ROLL_ON, (turnover_cents + 1) % 10)
    assert seen(counter) == turnover_cents - turnover_cents % 10 + (turnover_cents + 1) % 10, "not what a person sees"
    orders = shown.total("orders")
    expect(window.page.locator(".orders live-value")).to_have_text(f"{orders:,}")
    expect(window.page.locator(".conversion live-value")).to_have_text(f"{shown.total('paid') / orders:.1%}")

    expect(status).to_contain_text("No new figures for")
    expect(window.page.locator(":root")).to_have_attribute("data-old", "true")
    window.screenshot("old")
    with shown.trading():
        expect(status).to_have_text("Live")
        expect(window.page.locator(":root")).to_have_attribute("data-old", "false")


_DIGITS_SAY = """digits => digits == [...document.querySelectorAll("rolling-number .digit > span")].map((strip) => {
    return Math.round((parseFloat(strip.style.transform.slice("translateY(".length)) / -100) * 11) % 10;
}).join("")"""
"""True if the visible digits, after all rolling, are these."""
_STANDS = """() => {
    const places = [...document.querySelectorAll("rolling-number .digit > span")].map((strip) => {
        return strip.style.transform;
    }).join();
    window.stoodFrames = places === window.placesBefore ? window.stoodFrames + 1 : 0;
    window.placesBefore = places;
    return window.stoodFrames >= 5;
}"""
"""True if no digit moves any more. Evaluated in each frame; a roll ends so slowly that two frames can look the same."""
_ROLL_ON = """(counter, digit) => {
    counter.lastElementChild.firstChild.style.transform = `translateY(${(-digit / 11) * 100}%)`;
}"""
"""Makes the last digit show another one."""


def test_provinces_are_ranked_by_the_database_and_the_rest_is_summed_up(look: Look, shown: ShownPage) -> None:
    window = look(locale="zh-CN")
    window.wait("() => document.querySelectorAll('.provinces .row').length > 5")
    window.wait(f"cents => document.querySelector('{TURNOVER}').dataset.value == cents", shown.total("turnover_cents"))
    rows = window.page.locator(".provinces .row:not(.is-rest) .label").all_inner_texts()
    with psycopg.connect(shown.results, connect_timeout=10) as connection:
        ranked = [
            row[0] for row in connection.execute("select province from figures_province order by turnover_cents desc")
        ]
    assert rows == [PROVINCES[code].chinese for code in ranked[: len(rows)]]
    expect(window.page.locator(".provinces .is-rest .label")).to_have_text(f"其余 {31 - len(rows)} 个")


def test_part_that_is_down_is_named_and_unreported_part_is_unknown(look: Look, shown: ShownPage) -> None:
    window = look()
    status = window.page.locator("live-status")
    with shown.trading():
        with shown.telling(parts={"broker": False, "tailer": True}, measures={"waiting": 1234, "tailer_s": 0.25}):
            expect(status).to_contain_text("Broker down")
            window.screenshot("down")
            expect(window.page.locator(":root")).to_have_attribute("data-state", "bad")
            expect(window.page.locator('part-state[part="broker"]')).to_have_attribute("data-state", "down")
            expect(window.page.locator('part-state[part="tailer"]')).to_have_attribute("data-state", "up")
            expect(window.page.locator('live-value[value="measures.waiting"]')).to_have_text("1,234")
            expect(window.page.locator('live-value[value="measures.tailer_s"]')).to_have_text("250\u202fms")
        expect(status).to_have_text("State of Broker, Tailer unknown")
        expect(window.page.locator('live-value[value="measures.waiting"]')).to_have_text("–")
        shown.tell(parts={}, measures={})
        expect(status).to_have_text("Live")


def test_lost_connection_is_reported_and_reopened(look: Look, shown: ShownPage) -> None:
    window = look()
    status = window.page.locator("live-status")
    window.wait("selector => document.querySelector(selector).dataset.value > 0", TURNOVER)
    shown.page.pause()  # its connections stay open and silent
    try:
        expect(status).to_contain_text("No connection to the server for")
        expect(window.page.locator(":root")).to_have_attribute("data-lost", "true")
        window.screenshot("lost")
    finally:
        shown.page.resume()
    expect(status).not_to_contain_text("No connection")
    shown.page.kill()
    expect(status).to_contain_text("No connection to the server for")
    shown.page.start()
    expect(status).not_to_contain_text("No connection")
    assert all("net::ERR" in each for each in window.complaints)  # the browser's own words on it
    window.complaints.clear()


@pytest.mark.parametrize(("locale", "language"), [("zh-TW", "zh"), ("de-DE", "en")])
def test_page_uses_the_language_of_the_browser_until_it_is_switched(look: Look, locale: str, language: str) -> None:
    window = look(locale=locale)
    other = {"zh": "en", "en": "zh"}[language]
    _expect_language(window, language)
    window.page.click("#language")
    _expect_language(window, other)
    window.page.reload()
    _expect_language(window, other)


def _expect_language(window: Window, language: str) -> None:
    words = {key: getattr(each, language) for key, each in PAGE.words.items()}
    window.wait("() => document.querySelector('.provinces .row') !== null")
    said = window.page.evaluate("() => [...document.querySelectorAll('[data-word]')].map(e => e.dataset.word)")
    assert window.page.locator("[data-word]").all_text_contents() == [words[key] for key in said]
    assert window.page.title() == words["title"]
    amounts = window.page.locator(".provinces .value").all_inner_texts()
    assert all(each[-1] in {"zh": "万亿", "en": "KMB"}[language] for each in amounts)


def test_page_uses_the_colour_scheme_of_the_system_until_it_is_switched(look: Look) -> None:
    window = look(scheme="dark")
    shades = []
    for _ in ("system", "light", "dark"):
        shades.append(window.page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
        window.page.click("#theme")
    assert shades == ["rgb(10, 14, 22)", "rgb(238, 241, 246)", "rgb(10, 14, 22)"]
    window.page.click("#theme")
    window.page.reload()
    expect(window.page.locator(":root")).to_have_attribute("data-theme", "light")
    for _ in ("dark", "system"):
        window.page.click("#theme")
    window.page.emulate_media(color_scheme="light")
    expect(window.page.locator("body")).to_have_css("background-color", "rgb(238, 241, 246)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_sufficient_contrast(look: Look, shown: ShownPage, scheme: str) -> None:
    window = look(scheme=scheme)
    window.wait("() => document.querySelector('.provinces .row') !== null")
    with shown.trading():
        expect(window.page.locator("live-status")).to_have_text("Live")
        faint = window.page.evaluate(_FAINT_TEXTS, 4.5)
    assert not faint, faint


_FAINT_TEXTS = """least => {
    const parts = (colour) => {
        const context = document.createElement("canvas").getContext("2d");
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data].map((each) => each / 255);
    };
    const over = (front, back) => [0, 1, 2].map((at) => front[at] * front[3] + back[at] * (1 - front[3])).concat(1);
    const light = (colour) => colour.slice(0, 3).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (node) => node === null ? [1, 1, 1, 1]
        : over(parts(getComputedStyle(node).backgroundColor), behind(node.parentElement));
    const hasText = (node) => [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    return [...document.querySelectorAll("body *")].filter((node) => hasText(node) && node.offsetParent).map((node) => {
        const style = getComputedStyle(node);
        const [a, b] = [light(over(parts(style.color), behind(node))), light(behind(node))].sort((x, y) => y - x);
        return [node.textContent, (a + 0.05) / (b + 0.05)];
    }).filter(([, contrast]) => contrast < least);
}"""
"""Texts whose contrast is below WCAG AA."""


@pytest.mark.parametrize("size", [WALL, LAPTOP, SMALL], ids=["wall", "laptop", "small"])
@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_page_fits_the_screen_without_scrolling(
    look: Look, shown: ShownPage, size: tuple[int, int], locale: str
) -> None:
    bulletin = shown.page.bulletin()
    bulletin["figures"]["total"] |= {"turnover_cents": GREAT, "orders": 123_456_789, "refunded": 1_234_567}
    bulletin["figures"]["provinces"][0]["turnover_cents"] = GREAT
    bulletin["parts"] = {name: True for name in ("trade_service", "broker", "tailer", "spark", "figures")}
    bulletin["measures"] = {"in_doubt": 123_456, "waiting": 1_234_567, "tailer_s": 4000, "tailer_messages": 12_345_678}
    window = look(size=size, locale=locale, scheme="dark" if size == WALL else "light", bulletin=bulletin)
    window.wait("() => document.querySelectorAll('.provinces .row').length > 10")
    window.wait(_DIGITS_SAY, f"{GREAT}")
    window.screenshot(f"{size[0]}-{locale[:2]}")
    assert window.page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    ) == list(size)
    cut = window.page.evaluate(_CUT_TEXTS)
    assert not cut, cut
    assert window.page.locator(".sellers .row").count() == 10


_CUT_TEXTS = """() => [...document.querySelectorAll("body *")].filter((node) => {
    if (!node.offsetParent || !node.textContent.trim() || node.closest(".digit, time-line, .track")) return false;
    const { right, bottom } = node.getBoundingClientRect();
    const isInline = getComputedStyle(node).display === "inline";
    return right > innerWidth || bottom > innerHeight || (!isInline && node.scrollWidth > node.clientWidth + 1)
        || (node.matches(".panel") && node.scrollHeight > node.clientHeight + 1);
}).map((node) => [node.tagName, node.className, node.textContent])"""
"""Elements whose text does not fit."""


def test_phone_layout_has_two_columns_and_two_screens(look: Look, shown: ShownPage) -> None:
    bulletin = shown.page.bulletin()
    bulletin["figures"]["total"] |= {"turnover_cents": GREAT, "orders": 123_456_789, "refunded": 1_234_567}
    # On a busy machine a part is unknown or figures are old, and the status line that says so is higher. It may come
    # between two looks at the page, too: all sizes are of one.
    bulletin |= {"parts": dict.fromkeys(bulletin["parts"], True), "stale_after_ms": 3_600_000}
    window = look(size=PHONE, bulletin=bulletin)
    window.wait("() => document.querySelectorAll('.provinces .row').length > 5")
    window.wait(_DIGITS_SAY, f"{GREAT}")
    window.screenshot("phone")
    width, height, *boxes = window.page.wait_for_function(
        """() => {
            const { dataset, scrollWidth, scrollHeight } = document.documentElement;
            const names = ["orders", "rate", "conversion", "refunded"];
            const boxes = names.map((name) => document.querySelector(`.${name}`).getBoundingClientRect().toJSON());
            return dataset.state === "live" && [scrollWidth, scrollHeight, ...boxes];
        }"""
    ).json_value()
    assert width == PHONE[0]
    assert height < 2 * PHONE[1]
    orders, rate, conversion, refunded = boxes
    assert orders["y"] == rate["y"] < conversion["y"] == refunded["y"]
    assert orders["x"] == conversion["x"] < rate["x"] == refunded["x"]


def test_rising_row_is_drawn_over_the_one_that_it_passes(look: Look, shown: ShownPage) -> None:
    window = look(bulletin=shown.page.bulletin())
    window.wait("() => document.querySelectorAll('.provinces .row').length > 10")
    rows = window.page.locator(".provinces .row")
    # In one step: the page may redraw its rows at any moment.
    is_first_on_top, is_second_on_top = rows.evaluate_all(
        """([first, second]) => {
            second.style.transition = "none";
            second.style.transform = first.style.transform;
            return [first, second].map((row) => {
                const { x, y, height } = row.getBoundingClientRect();
                return row.contains(document.elementFromPoint(x + 40, y + height / 2));
            });
        }"""
    )
    assert (is_first_on_top, is_second_on_top) == (True, False)
    first = rows.nth(0)
    assert first.evaluate("row => getComputedStyle(row).backgroundColor").startswith("rgb(")


def test_page_without_figures_shows_placeholders(look: Look, shown: ShownPage) -> None:
    bulletin = shown.page.bulletin()
    nothing = {
        "total": dict.fromkeys(bulletin["figures"]["total"], 0),
        "seconds": {"from": 0, "orders": [], "paid": []},
    }
    nothing |= {name: [] for name in ("provinces", "categories", "sellers")}
    for empty in (None, nothing | dict.fromkeys(bulletin["figures"].keys() - nothing.keys())):
        window = look(bulletin=bulletin | {"figures": empty, "age_ms": None, "written_at": None, "through_at": None})
        expect(window.page.locator("live-status")).to_have_text("Waiting for the first figures")
        expect(window.page.locator(TURNOVER)).to_have_attribute("aria-label", "–" if empty is None else "¥0.00")
        assert window.page.locator(".is-empty").count() == 4
        assert window.page.locator(f"{TURNOVER}[data-value]").count() == (0 if empty is None else 1)
        text = window.page.inner_text("body")
        assert [each for each in ("NaN", "undefined", "null", "Infinity") if each in text] == []
    window.screenshot("empty")


def test_a_browser_with_an_older_release_loads_the_page_again(look: Look, shown: ShownPage) -> None:
    window = look(bulletin=shown.page.bulletin() | {"release": "newer"})
    with window.page.expect_event("load", timeout=WAIT_MS):
        pass
