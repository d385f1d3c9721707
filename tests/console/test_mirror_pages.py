"""The pages of mirrors and logs, with a real broker, a real log and a browser."""

from __future__ import annotations

import httpx2
from markupsafe import escape
from playwright.sync_api import expect

from tests.console.conftest import WAIT_MS, Look, ShownConsole, page
from tests.metaq.logs import batch
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.store.topics import TopicSettings

HOSTILE = "<img src=x onerror=alert(1)>"

expect.set_options(timeout=WAIT_MS)


def facts(text: str) -> dict[str, str]:
    """Return the names and values of a page's lists of facts."""
    pairs = (each.split("</dd>")[0].split("</dt><dd") for each in text.split("<dt>")[1:])
    return {name: value.split(">", 1)[1] for name, value in pairs}


def test_mirror_page_shows_lag_and_reason_of_a_stopped_queue(client: httpx2.Client, shown: ShownConsole) -> None:
    assert "This database is not mirrored." in page(client, "/mirrors")
    shown.execute(
        "with t as (insert into txmsg.topic (name, queue_count, ordered_queues) values ('mirrored', 2, 2) returning id)"
        ", q as (insert into txmsg.queue (topic_id, number) select id, n from t, generate_series(0, 1) n "
        "returning id, number), "
        "s as (select id from txmsg.segment where state = 'open'), "
        "m as (insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at, stored_at) "
        "select s.id, q.id, o, gen_random_uuid(), 0, '', now(), now() - interval '90 s' "
        "from s, q, generate_series(0, 4) o), "
        "r as (insert into txmsg.mirror (name, include, exclude, log, seen_at) "
        "values ('copy', '{mirror*}', '{other,%DLQ%*}', '/logs/copy', now()) returning name) "
        "insert into txmsg.mirror_queue (mirror, queue, next_offset, stopped) "
        f"select 'copy', q.id, 2 * number, case number when 1 then 'it differs: {HOSTILE}' end from q, r"
    )
    text = page(client, "/mirrors")
    found = facts(text)
    assert (found["Waiting"], found["Queues"], found["Log"]) == ("8", "2", "/logs/copy")
    assert found["For"].startswith("1 min 3")
    assert found["Topics"] == "mirror* without other"
    assert "queues stopped: 1" in text
    assert "no tailer" in text
    assert "no slot" in text
    rows = text.split('<tr id="behind-copy-')[1:]
    assert ["it differs" in row for row in rows] == [True, False]  # stopped queues come first
    assert str(escape(HOSTILE)) in rows[0]


def test_log_page_shows_topics_and_groups_and_seeks_a_group(
    client: httpx2.Client, shown: ShownConsole, look: Look
) -> None:
    with open_log(shown.log, append=True) as log:
        log.append([batch("trade", queue, 0, 5) for queue in range(2)])
        log.set_topic("trade", TopicSettings(retention_s=7200.0))
        member = log.join("spark", ["trade"])
        taken = [LogQueue("trade", queue) for queue in range(2)]
        member.take_queues(taken)
        member.leave(dict.fromkeys(taken, 3))
        text = page(client, "/mirrors")
        assert str(shown.log) in text
        assert "/notify/logs/trades" in text
        text = page(client, "/logs/trades", q="trade")
        assert "directory" in facts(text)["State"]
        assert "2 h 0 min" in text
        assert ">10<" in text.split('id="topic-1"')[1]  # messages kept
        text = page(client, "/logs/trades", q="spark")
        assert ">4<" in text.split('id="group-1"')[1]  # waiting
        assert "Nothing matches." in page(client, "/logs/trades", q="nothing like it")

        seen = look("/notify/logs/trades/groups/spark")
        expect(seen.locator("[id^=queue-]")).to_have_count(2)
        seen.get_by_role("button", name="Seek…").click()
        asked = seen.locator("#dialog")
        asked.get_by_label("Position").fill("earliest")
        asked.get_by_label("Position").press("Tab")
        expect(asked).to_contain_text("Skips up to 0 messages that it has not processed, and delivers 6 again")
        expect(asked.get_by_label("Handle again")).to_have_count(0)  # a log has no generations
        asked.get_by_role("button", name="Seek", exact=True).click()
        expect(seen.locator("#toasts")).to_contain_text("Group spark continues there in 2 queues")
        assert [state.offset for state in log.group("spark").queues] == [0, 0]
        assert 'data-state="warn">stopped<' not in page(client, "/logs/trades/groups/spark")
        log.alter_group("spark", stopped=True, rate_per_s=2.5)
        stopped = page(client, "/logs/trades/groups/spark")
        assert 'data-state="warn">stopped<' in stopped
        assert "2.5/s" in facts(stopped).values()
        assert "10 messages waiting" in page(client, "/logs/trades/groups/spark/delete")
        assert client.post("/logs/trades/groups/spark/delete", data={}).status_code == 204
        assert "spark" not in log.groups()
    assert client.get("/logs/trades/groups/spark").status_code == 404
    assert "This console shows no log other" in client.get("/logs/other").text


def test_relative_time_becomes_absolute_in_the_confirmation(client: httpx2.Client, shown: ShownConsole) -> None:
    with open_log(shown.log, append=True) as log:
        log.append([batch("late", 0, 0, 5)])
        member = log.join("late", ["late"])
        member.take_queues([LogQueue("late", 0)])
        member.leave({LogQueue("late", 0): 0})
    asked = page(client, "/logs/trades/groups/late/seek", topic="late", to="2h", queue="")
    typed = asked.split('name="to"')[1].split('value="')[1].split('"')[0]
    assert typed.startswith("20")
    asked = page(client, "/dead-letters/purge", since="2h")
    fields = {each.split('"')[0] for each in asked.split('<input type="hidden" name="')[1:]}
    assert fields == {"since", "until"}
    assert 'value="2h"' not in asked
