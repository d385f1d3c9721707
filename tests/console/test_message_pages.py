"""The pages of topics, groups, dead letters, parked transactions and messages, with a real broker and a browser."""

from __future__ import annotations

import re
from urllib.parse import quote

import httpx2
import psycopg
from markupsafe import escape
from playwright.sync_api import expect

from tests.console.conftest import WAIT_MS, Look, ShownConsole, page
from tests.integration.cli_harness import json_of, store_half
from tests.integration.client_harness import collecting
from tests.integration.test_dead_letter_command import bury, processed
from tests.waiting import until
from txmsg.administration.schemas import register_schema
from txmsg.client import Producer
from txmsg.message import Message
from txmsg.message.typed.topic import Topic
from txmsg.ops.cli.connections import asker

HOSTILE = "<img src=x onerror=alert(1)>\u202e{{ 7*7 }}"

expect.set_options(timeout=WAIT_MS)


def dialog(client: httpx2.Client, path: str, **query: str) -> str:
    """Return the dialog of an action, which must have a button."""
    text = page(client, path, **query)
    assert "hx-post" in text, text
    return text


def test_topic_page_shows_the_groups_with_the_greatest_lag(client: httpx2.Client, shown: ShownConsole) -> None:
    with Producer(shown.broker.address, group="many") as producer:
        producer.send_many([Message("page.many", b"x", key="k", ordering_key="k") for _ in range(50)])
    shown.execute("insert into txmsg.consumer_group (name) select 'many-' || n from generate_series(1, 120) n")
    shown.execute(
        "insert into txmsg.cursor (group_id, queue_id, next_offset, epoch) select g.id, q.id, "
        "case when g.name = 'many-77' then 0 else 50 end, 0 from txmsg.consumer_group g, txmsg.queue q "
        "join txmsg.topic t on t.id = q.topic_id where t.name = 'page.many' and g.name like 'many-%'"
    )
    text = page(client, "/topics/page.many")
    assert re.findall(r'href="[^"]*/groups/(many-[0-9]+)"', text)[0] == "many-77"
    assert len(re.findall(r'href="[^"]*/groups/many-[0-9]+"', text)) == 100
    assert "and 20 more" in text
    shown.execute("delete from txmsg.consumer_group where name like 'many-%'")


def test_topics_are_searched_created_changed_and_deleted(client: httpx2.Client, shown: ShownConsole) -> None:
    assert "It accepts messages at once" in dialog(client, "/new/topic")
    for name in ("page.one", "page.two"):
        answer = client.post("/new/topic", data={"topic": name, "queues": "2"})
        assert answer.status_code == 204
        assert f"Topic {name} created, with 2 queues" in answer.headers["hx-trigger"]
    found = page(client, "/topics", q="PAGE.o")
    assert "page.one" in found
    assert "page.two" not in found
    text = page(client, "/topics/page.one")
    assert "No group reads it yet." in text
    assert "accepts messages" in text.split('id="segment-1"')[1]
    assert "Schemas" not in text
    register_schema(asker(shown.broker.address), Topic("page.one", str, version=3))
    text = page(client, "/topics/page.one")
    assert "text/plain" in text.split('id="schema-3"')[1]
    assert escape('"type": "string"') in text
    asked = dialog(client, "/topics/page.one/alter")
    assert "The number of queues can only grow" in asked
    settings = {"queues": "4", "write_queues": "2", "read_queues": "2", "ordered_queues": "2", "send_rate_max": ""}
    settings |= {"permission": "none", "durability": "sync", "unread": "keep", "journal": "on", "message_type": "fifo"}
    asked = dialog(client, "/topics/page.one/alter", **settings)
    assert "Queues: 2 → 4" in asked
    assert "Permission: rw → none" in asked
    assert "Journal: off → on" in asked
    assert "Accepts messages: any → fifo" in asked
    assert "Send rate" not in asked.split('class="fields"')[0]
    assert "Unread" not in asked.split('class="fields"')[0]
    client.post("/topics/page.one/alter", data=settings)
    topic = json_of("topic", "show", "page.one", "--broker", shown.broker.address)
    assert (topic["queues"], topic["read_queues"], topic["permission"]) == (4, 4, "none")
    assert topic["message_type"] == "fifo"
    assert "on, since" in page(client, "/topics/page.one")
    assert "with an ordering key" in page(client, "/topics/page.one")
    now = {name: str(topic[name]) for name in ("queues", "write_queues", "read_queues", "ordered_queues")}
    answer = client.post("/topics/page.one/alter", data={**settings, **now, "journal": "off"})
    assert answer.status_code == 204, answer.text
    assert "on, since" not in page(client, "/topics/page.one")
    shown.execute("update txmsg.topic set write_changed_at = now() - interval '11 s'")
    assert "It is deleted with 0 messages in 4 queues, for good." in dialog(client, "/topics/page.one/delete")
    client.post("/topics/page.one/delete", data={})
    assert client.get("/topics/page.one").status_code == 404
    refused = client.post("/topics/page.two/delete", data={}).text
    assert "Nothing was done" in refused
    assert "still accepts messages" in refused
    assert "is not a number" in client.post("/new/topic", data={"topic": "x", "queues": "many"}).text


def test_group_can_be_sought_stopped_and_started(client: httpx2.Client, shown: ShownConsole) -> None:
    processed(shown.broker, *(Message("page.read", b"%d" % n) for n in range(6)), group="page-readers")
    with collecting(shown.broker.address, "page.read", group="page-readers"):
        text = until(lambda: found if "No member" not in (found := page(client, "/groups/page-readers")) else None)
        assert "page.read" in text
    assert "page-readers" in page(client, "/groups", q="PAGE-R")
    assert "page-readers" not in page(client, "/groups", q="nothing like it")
    asked = dialog(client, "/groups/page-readers/seek")
    assert "Type a position to see how many" in asked
    asked = dialog(client, "/groups/page-readers/seek", topic="page.read", to="earliest", queue="")
    assert "Skips up to 0 messages that it has not processed, and delivers 6 again, in 4 queues." in asked
    wrong = page(client, "/groups/page-readers/seek", topic="page.read", to="soon", queue="")
    assert "is not a valid start position" in wrong
    client.post("/groups/page-readers/seek", data={"topic": "page.read", "to": "earliest", "queue": ""})
    group = ("group", "show", "page-readers", "--broker", shown.broker.address)
    assert json_of(*group)["waiting"] == 6
    assert "messages wait, and new ones with them" in dialog(client, "/groups/page-readers/stop")
    client.post("/groups/page-readers/stop", data={})
    assert json_of(*group)["stopped"]
    assert "Start delivery" in page(client, "/groups/page-readers")
    client.post("/groups/page-readers/start", data={})
    assert not json_of(*group)["stopped"]
    settings = {"rate": "5", "retries": "2", "delays": "1s 5s", "poisoned_key": "park", "orderly": "on"}
    client.post("/groups/page-readers/alter", data=settings)
    found = json_of(*group)
    assert (found["rate"], found["retries"], found["retry_delays"]) == (5, 2, ["1s", "5s"])
    assert (found["poisoned_key"], found["orderly"]) == ("park", True)
    assert "in place, in order" in page(client, "/groups/page-readers")
    assert "soon is not a duration" in client.post("/groups/page-readers/alter", data={"delays": "soon"}).text
    assert "6 messages waiting, 0 in retry" in dialog(client, "/groups/page-readers/delete")
    assert client.get("/groups/nobody").status_code == 404


def test_retries_are_listed_delivered_now_and_skipped(client: httpx2.Client, shown: ShownConsole) -> None:
    sent = processed(shown.broker, *(Message("page.retry", b"%d" % n, key=HOSTILE) for n in range(3)), group="retriers")
    shown.execute(
        "insert into txmsg.retry (group_id, queue_id, queue_offset, attempt, due_at, transaction_id, n, key, body, "
        "born_at, stored_at, last_error) select g.id, m.queue, m.queue_offset, 1, now() + interval '1 h', "
        "m.transaction_id, m.n, m.key, m.body, m.born_at, m.stored_at, '<img src=x>' "
        "from txmsg.message m, txmsg.consumer_group g, txmsg.queue q, txmsg.topic t "
        "where g.name = 'retriers' and q.id = m.queue and t.id = q.topic_id and t.name = 'page.retry'"
    )
    text = page(client, "/groups/retriers")
    assert all(id_ in text for id_ in sent)
    assert str(escape("<img src=x>")) in text
    assert "3 retries are delivered now" in dialog(client, "/groups/retriers/retry")
    assert f"{sent[0]} is not delivered to retriers again" in dialog(client, "/groups/retriers/skip", id=sent[0])
    assert "Messages skipped: 1" in client.post("/groups/retriers/skip", data={"id": sent[0]}).headers["hx-trigger"]
    assert sent[0] not in page(client, "/groups/retriers")
    retried = client.post("/groups/retriers/retry", data={"id": sent[1]}).headers["hx-trigger"]
    assert "Retries delivered now: 1" in retried
    assert "of 2" in client.post("/groups/retriers/retry", data={}).text  # an operation, with progress


def test_dead_letters_are_filtered_shown_and_redriven_in_the_browser(
    client: httpx2.Client, shown: ShownConsole, look: Look
) -> None:
    body = b'{"sign": "<img src=x>"}'
    sent = processed(
        shown.broker,
        *(Message("page.dead", body, key=HOSTILE, headers={HOSTILE: HOSTILE}) for _ in range(3)),
        group="page-mourners",
    )
    bury(shown.storage, sent[:2], group="page-mourners", error=f"no route {HOSTILE}")
    bury(shown.storage, sent[2:], group="page-mourners", error="another")
    text = page(client, "/dead-letters", group="page-mourners")
    assert all(id_ in text for id_ in sent)
    assert "To redrive or purge several dead letters, filter" in page(client, "/dead-letters")
    assert "Select dead letters" in page(client, "/dead-letters/redrive")
    found = page(client, "/dead-letters", error="NO ROUTE")
    assert sent[0] in found
    assert sent[2] not in found
    one = page(client, f"/dead-letters/page-mourners/{quote(sent[0])}")
    assert str(escape('"sign": "<img src=x>"')) in one
    assert "3c 69 6d 67" in page(client, f"/dead-letters/page-mourners/{quote(sent[0])}", form="hex")
    assert "Purge 1 dead letters?" in dialog(client, "/dead-letters/purge", group="page-mourners", error="another")

    seen = look("/notify/dead-letters?group=page-mourners&error=no+route")
    expect(seen.locator("tbody tr")).to_have_count(2)
    seen.get_by_role("button", name="Redrive…").click()
    asked = seen.locator("#dialog")
    expect(asked).to_contain_text("Redrive 2 dead letters?")
    asked.get_by_role("button", name="Redrive", exact=True).click()
    expect(asked).to_contain_text("2 of 2")
    expect(asked).to_contain_text("done")
    asked.get_by_role("button", name="Close").click()
    expect(seen.locator("#live")).to_contain_text("Nothing matches.")
    left = json_of("dead-letter", "list", "--group", "page-mourners", "--broker", shown.broker.address)
    assert [letter["id"] for letter in left["dead_letters"]] == [sent[2]]


def test_parked_transaction_is_resolved_in_the_browser_with_a_reason(
    client: httpx2.Client, shown: ShownConsole, look: Look
) -> None:
    body = f'{{"text": "{HOSTILE}"}}'.encode()
    half = store_half(shown.broker, group="page-shop", body=body)
    other = store_half(shown.broker, group="page-shop")
    text = page(client, "/halves", group="page-shop")
    assert half in text
    assert other in text
    with psycopg.connect(shown.storage, connect_timeout=10) as connection:
        connection.execute("update txmsg.half_message set next_check_at = '2026-01-02 03:04:05+00'")
    text = page(client, "/halves", group="page-shop")
    assert "no client can answer" in text
    assert "check due since" in text
    assert "no client can answer" in page(client, f"/halves/{half}")
    assert "Clients attached that can answer: 0" in dialog(client, f"/halves/{half}/check")
    assert client.post(f"/halves/{half}/check", data={}).status_code == 204
    assert "Give a reason" in client.post(f"/halves/{half}/rollback", data={"reason": " "}).text
    assert "is not the id of a transaction" in client.get("/halves/x").text

    seen = look(f"/notify/halves/{half}")
    expect(seen.locator("pre.body")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(seen.locator("#live")).to_contain_text("No client that could answer is attached")
    seen.get_by_role("button", name="Commit…").click()
    asked = seen.locator("#dialog")
    expect(asked).to_contain_text("1 messages of page-shop are delivered to order.placed.")
    asked.get_by_label("Reason").fill("the row is there")
    asked.get_by_role("button", name="Commit", exact=True).click()
    expect(seen.locator("#toasts")).to_contain_text("Committed")
    (message,) = json_of("message", "find", "--id", half, "--broker", shown.broker.address)["messages"]
    assert (message["state"], message["decided_by"]) == ("stored", "operator")
    assert "the row is there" in shown.broker.log.read_text()


def test_message_is_found_by_key_and_its_history_and_body_are_shown(client: httpx2.Client, shown: ShownConsole) -> None:
    with Producer(shown.broker.address, group="shop") as producer:
        sent = producer.send(Message("page.found", b"\xff\x00", key=HOSTILE, headers={"trace": HOSTILE}))
    assert "Type the id of a message" in page(client, "/messages")
    assert "is unknown" in page(client, "/messages", q="no such key")
    found = page(client, "/messages", q=HOSTILE)
    assert sent in found
    assert "\u202e" not in re.sub(r"<input[^>]*>", "", found)  # a field contains exactly the given text
    queue, offset = re.search(r"<td[^>]*>(\d+) / (\d+)</td>", found).groups()  # type: ignore[union-attr]
    assert sent in page(client, "/messages", topic="page.found", queue=queue, **{"from": offset})
    assert sent in page(client, "/messages", topic="page.found", **{"from": "1h"})
    later = str(int(offset) + 1)
    assert "Nothing is stored there." in page(client, "/messages", topic="page.found", queue=queue, **{"from": later})
    assert "topic &#39;nowhere&#39; is unknown" in page(client, "/messages", topic="nowhere")
    one = page(client, f"/messages/{quote(sent)}")
    assert "ff 00" in one
    assert "In its queue" in one
    assert str(escape("<img src=x onerror=alert(1)>")) in one
