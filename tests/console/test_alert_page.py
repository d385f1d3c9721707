"""The page of alerts with a real broker: a firing alert is silenced for a time, and the silence is ended."""

from __future__ import annotations

import httpx2
import pytest
from markupsafe import escape
from playwright.sync_api import expect

from tests.console.conftest import WAIT_MS, Look, ShownConsole, page
from tests.integration.cli_harness import json_of

HOSTILE = "<img src=x onerror=alert(1)>[*]"

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module", autouse=True)
def alerts(shown: ShownConsole) -> None:
    """Two alerts fire, one is pending, one is resolved; brokers do not change them during the tests."""
    shown.execute(
        "update txmsg.alert_round set begun_at = now() + interval '50 s', is_finished = false;"
        "insert into txmsg.alert (source, rule, labels, severity, summary, action, state, value, since, seen_at, "
        "fired_at, resolved_at) select 'database', rule, jsonb_build_object('where', place), 'critical', "
        f"'summary of ' || place, 'look at {HOSTILE}', state, 1, now() - interval '1 h', now() + interval '1 h', "
        "case when state <> 'pending' then now() end, case when state = 'resolved' then now() end "
        f"from (values ('TestFires', '{HOSTILE}', 'firing'), ('TestFires', 'elsewhere', 'firing'), "
        "('TestWaits', 'here', 'pending'), ('TestOver', 'there', 'resolved')) alert (rule, place, state)"
    )


def test_alerts_are_silenced_and_unsilenced_in_the_browser(
    client: httpx2.Client, shown: ShownConsole, look: Look
) -> None:
    seen = look("/notify/alerts")
    expect(seen.locator("[id^=alert-]")).to_have_count(3)
    expect(seen.locator("[id^=over-]")).to_contain_text(["summary of there"])
    expect(seen.locator("#live .bar")).to_contain_text("firing 2")
    expect(seen.locator("#live .bar")).to_contain_text("pending 1")
    row = seen.locator("tr", has_text=f"summary of {HOSTILE}")
    row.get_by_role("button", name="Silence…").click()
    asked = seen.locator("#dialog")
    expect(asked).to_contain_text("Receivers are not notified of alerts that match.")
    expect(asked).to_contain_text("Matches now: 1")  # its signs are no pattern
    asked.get_by_label("For", exact=True).fill("30m")
    asked.get_by_label("Reason").fill("we know")
    asked.get_by_role("button", name="Silence", exact=True).click()
    expect(seen.locator("#toasts")).to_contain_text("holds for 30m")
    expect(row.locator(".badge")).to_have_text("silenced")
    expect(seen.locator("#live .bar")).to_contain_text("firing 1")
    listed = json_of("alert", "list", "--broker", shown.broker.address)
    (silence,) = listed["silences"]
    assert silence["reason"] == "we know"
    assert [each["labels"]["where"] for each in listed["alerts"] if each["silences"]] == [HOSTILE]

    seen.get_by_role("button", name="End…").click()
    expect(asked).to_contain_text("that only this silence suppresses: 1")
    asked.get_by_role("button", name="End", exact=True).click()
    expect(row.locator(".badge")).to_have_text("firing")
    assert json_of("alert", "list", "--broker", shown.broker.address)["silences"] == []
    ended = page(client, f"/alerts/silences/{silence['id']}/end")
    assert "it has ended" in ended
    assert "hx-post" not in ended


def test_silence_dialog_shows_matching_alerts_and_input_errors(client: httpx2.Client) -> None:
    text = page(client, "/alerts")
    assert str(escape(f"look at {HOSTILE}")) in text
    assert "brokers&#39; logs only" in text
    assert "Matches now" not in page(client, "/alerts/silence")
    assert "Matches now: 2" in page(client, "/alerts/silence", matchers="rule=TestF*")
    wrong = page(client, "/alerts/silence", matchers="<img>", reason="typed")
    assert "does not say which alerts" in wrong
    assert 'value="typed"' in wrong  # the typed value is kept
    given = {"matchers": "rule=TestF*", "for": "2h", "reason": "why"}
    for name, value, refused in (
        ("for", "soon", "is not a duration"),
        ("reason", "", "must be 1 to 500 characters"),
        ("matchers", "", "a silence needs 1 to 20 matchers"),
    ):
        answer = client.post("/alerts/silence", data=given | {name: value}).text
        assert "Nothing was done" in answer
        assert refused in answer
