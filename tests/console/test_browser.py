"""The console in a browser with a real broker: live pages, confirmed actions, a broker that dies."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import LAPTOP, WAIT_MS, Look, ShownConsole

PHONE, WALL = (390, 844), (1920, 1080)

expect.set_options(timeout=WAIT_MS)


def test_page_reports_a_dead_broker_and_the_age_of_its_data_until_it_returns(look: Look, shown: ShownConsole) -> None:
    page = look("/notify/brokers")
    expect(page.locator(".pill")).to_have_text("Live")
    expect(page.locator("tbody tr")).to_have_count(1)
    shown.broker.kill()
    expect(page.locator("#away")).to_contain_text("No broker of notify answers.")
    expect(page.locator("#away")).to_contain_text("Shown is the state of")
    expect(page.locator("tbody tr")).to_have_count(1)
    shown.broker.start()
    expect(page.locator(".pill")).to_have_text("Live")
    expect(page.locator("#away")).to_have_count(0)


def test_action_shows_its_effect_before_and_its_result_after(look: Look, shown: ShownConsole) -> None:
    page = look("/notify/brokers")
    page.locator("tbody tr", has_text="active").locator("a").click()
    page.wait_for_url("**/notify/brokers/*")
    page.wait_for_selector("html[data-ready]")
    page.get_by_role("button", name="Drain…").click()
    dialog = page.locator("#dialog")
    expect(dialog).to_contain_text("It hands over its queues")
    expect(dialog).to_contain_text("other active brokers (0)")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(dialog).to_contain_text("no other broker is active")  # the broker's own rule, in its words
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()
    expect(page.locator(".badge").first).to_have_text("active")


def test_setting_is_changed_at_the_shown_version_and_rolled_back(look: Look, shown: ShownConsole) -> None:
    page = look("/notify/settings/broker.retention_s")
    for value in ("8d", "9d"):
        page.get_by_role("button", name="Set…", exact=True).click()
        page.locator("#field-value").fill(value)
        page.locator("#dialog button.primary").click()
        expect(page.locator(".facts dd").first).to_have_text(value)
    page.get_by_role("button", name="Set…", exact=True).click()
    expect(page.locator("#dialog")).to_contain_text("All brokers use the new value")
    second = look("/notify/settings/broker.retention_s")
    second.get_by_role("button", name="Roll back…").click()
    expect(second.locator("#dialog")).to_contain_text("It becomes 8d again")
    second.locator("#dialog button.primary").click()
    expect(second.locator(".facts dd").first).to_have_text("8d")
    page.locator("#field-value").fill("10d")
    page.locator("#dialog button.primary").click()
    expect(page.locator("#dialog")).to_contain_text("broker.retention_s is at version")  # another operator was faster
    page.goto(f"{shown.url}/notify/audit")
    expect(page.locator("#settings tbody tr", has_text="broker.retention_s")).to_have_count(3)
    expect(page.locator("#entries tbody tr", has_text="broker.retention_s").first).to_contain_text("9d → 8d")
    page.goto(f"{shown.url}/notify/settings?q=retention_s")
    expect(page.locator("tbody tr").first).to_contain_text("set at run time")


def test_hostile_names_are_rendered_as_text(look: Look, shown: ShownConsole) -> None:
    """Brokers refuse such names; a database written by other programs may contain them."""
    hostile = "<img src=x onerror=alert(1)>\u202e'\"{{7*7}}</script>"
    shown.execute(
        "insert into txmsg.setting_change (version, name, value, changed_by)"
        f" values (1000000, 'app.x', $txt${hostile}$txt$, $txt${hostile}$txt$)"
    )
    page = look("/notify/audit")
    row = page.locator("#settings tbody tr", has_text="app.x").first
    expect(row).to_contain_text("<img src=x onerror=alert(1)>\\u202e'\"{{7*7}}</script>")
    assert page.locator("#live img").count() == 0


def test_everything_is_reachable_by_keyboard(look: Look) -> None:
    page = look("/notify")
    page.keyboard.press("g")
    page.keyboard.press("b")
    page.wait_for_url("**/notify/brokers")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/notify/brokers/*")
    page.wait_for_selector("html[data-ready]")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()


def test_theme_and_language_can_be_switched(look: Look) -> None:
    page = look("/notify/brokers", locale="zh-CN")
    expect(page.locator("h1")).to_have_text("Broker")
    expect(page.locator(".pill")).to_have_text("实时")
    page.get_by_role("button", name="EN").click()
    expect(page.locator("h1")).to_have_text("Brokers")
    page.get_by_role("button", name="Dark theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("body")).to_have_css("background-color", "rgb(15, 15, 18)")


@pytest.mark.parametrize("size", [PHONE, LAPTOP, WALL])
def test_nothing_is_wider_than_the_window(look: Look, size: tuple[int, int]) -> None:
    page = look("/notify", size=size)
    expect(page.locator(".tile")).to_have_count(6)
    for link in _links(page):
        page.goto(link)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], link


def _links(page: Page) -> list[str]:
    links: list[str] = page.eval_on_selector_all("a[data-key]", "links => links.map(each => each.href)")
    assert links
    return links
