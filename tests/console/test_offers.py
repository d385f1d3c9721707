"""Actions that a visitor may not do are not offered, without a broker: by the table of permissions."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.console.answering import ACTION_PATHS, FORM, PARAMETERS, address, answered_console, answering, hostile
from txmsg.administration.access import ConnectionIdentity as Told
from txmsg.administration.dead_letters import DeadLetterPage
from txmsg.administration.halves import HalfPage
from txmsg.administration.messages import MessagePage
from txmsg.errors import PermissionDenied
from txmsg.ops.console.actions import ConsoleAction
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.ops.console.database_poller import DatabasePoller, DatabaseSnapshot
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.pages import ACTIONS
from txmsg.wire.access.permissions import PERMISSIONS, allows
from txmsg.wire.access.rules import ADMIN_RULES, Action, ResourceKind, Right, Rights, Rule
from txmsg.wire.access.tokens import new_token

WAIT_S = 60.0
_WITH_BODIES: dict[type, str] = {
    MessagePage: "messages",
    DeadLetterPage: "letters",
    HalfPage: "halves",
}
_LOOKS = [Rule("ann", Action.DESCRIBE, kind, "*") for kind in ResourceKind]
_OF_BROKERS = [action for action in ACTIONS if action.method]


def ann(*rules: Rule) -> UserIdentity:
    return UserIdentity(name="ann", rights=Rights([*_LOOKS, *rules]))


def offers(html: str) -> list[str]:
    """Return the targets of a page's buttons."""
    return re.findall(r'<button[^>]* hx-get="([^"?]*)', html)


@pytest.mark.parametrize("action", ACTIONS, ids=ACTION_PATHS)
async def test_each_action_names_the_rpc_method_that_it_calls(
    action: ConsoleAction, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch)
    async with answered_console() as found:
        await found.client.get(address(action.path), params=FORM)
        before = len(asked)
        answer = await found.client.post(address(action.path), data=FORM)
        assert answer.status_code in {200, 204}
    if action.method:
        assert action.method in asked[before:]
    else:
        assert asked[before:] == []


@pytest.mark.parametrize("path", ["topics", "groups", "halves", "dead_letters", "brokers", "settings", "alerts"])
async def test_page_offers_only_permitted_actions(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    pages = {
        "topics": "/topics/{topic}",
        "groups": "/groups/{group}",
        "halves": "/halves/{transaction}",
        "dead_letters": "/dead-letters/{group}/{id}",
        "brokers": "/brokers/{broker}",
        "settings": "/settings/{name}",
        "alerts": "/alerts",
    }
    admin = UserIdentity(name="root", roles=frozenset({"admin"}), rights=Rights(ADMIN_RULES))
    seen = {}
    for who in (None, admin, ann()):
        async with answered_console(who) as found:
            seen[who] = (await found.client.get(address(pages[path]))).text
    assert offers(seen[None]) == offers(seen[admin])
    assert offers(seen[None]) or path in {"brokers", "halves"}
    assert offers(seen[ann()]) == []
    buttons = seen[admin].count("…</button>")
    assert seen[ann()].count("…</button>") == buttons
    assert seen[ann()].count(' disabled title="user ann may not administer ') == buttons


@pytest.mark.parametrize("action", _OF_BROKERS, ids=[action.path for action in _OF_BROKERS])
async def test_dialog_shows_no_form_without_permission(action: ConsoleAction, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    (need,) = (need for need in PERMISSIONS[action.method] if not (need.optional or need.when))
    name = PARAMETERS.get(need.right.kind, "")
    of_another = Rule("ann", need.right.action, need.right.kind, "another")
    right = Rule("ann", need.right.action, need.right.kind, "*" if need.right.kind is ResourceKind.CLUSTER else name)
    async with answered_console(ann()) as found:
        text = (await found.client.get(address(action.path), params=FORM)).text
        assert f"user ann may not {need.right.action} {need.right.kind}" in text
        assert "<form hx-post" not in text
    if need.right.kind is not ResourceKind.CLUSTER:
        async with answered_console(ann(of_another)) as found:
            assert "user ann may not" in (await found.client.get(address(action.path), params=FORM)).text
    async with answered_console(ann(right)) as found:
        assert "user ann may not" not in (await found.client.get(address(action.path), params=FORM)).text


async def test_topic_creation_is_offered_with_permission_for_some_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch)
    some = Rule("ann", Action.ADMINISTER, ResourceKind.TOPIC, "ann.*")
    for who, offered in ((ann(), []), (ann(some), ["/notify/new/topic"])):
        async with answered_console(who) as found:
            assert offers((await found.client.get("/notify/topics")).text) == offered


async def test_page_uses_the_permissions_of_the_last_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("ann", Action.ADMINISTER, ResourceKind.TOPIC, "orders")

    async def ask(*_: object) -> Told:
        return Told(name="ann", authentication=True, rules=[rule])

    async def poll(_: DatabasePoller) -> DatabaseSnapshot:
        raise PermissionDenied("user ann may not describe cluster")

    monkeypatch.setattr(DatabaseBrokers, "ask_any", ask)
    monkeypatch.setattr(DatabasePoller, "_poll", poll)
    database = DatabaseBrokers("notify", ["127.0.0.1:1"], token=new_token().text)
    watch = DatabasePoller(database, ann())
    running = asyncio.create_task(watch.run())
    await watch.polled(WAIT_S)
    running.cancel()
    assert watch.who is not None
    assert watch.denied
    assert allows(watch.who.rights, Right(Action.ADMINISTER, ResourceKind.TOPIC), "orders")


@pytest.mark.parametrize("path", ["/messages/{id}", "/dead-letters/{group}/{id}", "/halves/{transaction}"])
async def test_withheld_values_are_marked_as_withheld(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def withheld(reply: Any) -> Any:
        filled = hostile(reply)
        if (field := _WITH_BODIES.get(reply)) is None:
            return filled
        found = [replace(each, is_withheld=True, body=b"", headers={}) for each in getattr(filled, field)]
        return replace(filled, **{field: found})

    answering(monkeypatch, withheld)
    async with answered_console() as found:
        text = (await found.client.get(address(path))).text
    assert "Headers and body are withheld" in text
    assert "with the right read topic:" in text
    assert '<pre class="body"' not in text
    assert "No headers." not in text
