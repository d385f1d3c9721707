"""Every page and dialog, with brokers whose every answer is HTML: it is shown as text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html.parser import HTMLParser

import pytest

from tests.console.answering import (
    ACTION_PATHS,
    FORM,
    HOSTILE,
    PARAMETERS,
    VIEW_PATHS,
    address,
    answered_console,
    answering,
)
from tests.console.served import Asked
from txmsg.administration.messages import Erased, ErasedMessages
from txmsg.errors import MisuseError, printable
from txmsg.ops.console.database import DatabaseBrokers

_SAYS_NOTHING_OF_BROKERS = {"/operations"}


class _Read(HTMLParser):
    """The elements, attributes and text that a browser would see."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def check(html: str) -> _Read:
    """Check that no element, attribute or script comes from the brokers."""
    read = _Read(html)
    sources = [value for name, value in read.attributes if name == "src"]
    assert [each for each in sources if not each.startswith(("/assets/", "/uplot/"))] == []
    assert read.tags.count("script") in {0, 4}  # of the layout
    assert [name for name, _ in read.attributes if name.startswith("on") or name == "style"] == []
    links = [value for name, value in read.attributes if name in {"href", "action", "hx-get", "hx-post"}]
    assert [each for each in links if not each.startswith(("/", "#"))] == []
    assert "\u202e" not in read.text
    assert "\r" not in html  # it would end a line of a stream of events
    return read


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    answering(monkeypatch)
    async with answered_console() as found:
        yield found


@pytest.mark.parametrize("path", VIEW_PATHS)
async def test_page_renders_hostile_broker_data_as_text(asked: Asked, path: str) -> None:
    answer = await asked.client.get(address(path), params={"q": HOSTILE, "topic": "", "group": HOSTILE})
    assert answer.status_code in {200, 400}, answer.text
    read = check(answer.text)
    assert path in _SAYS_NOTHING_OF_BROKERS or printable(HOSTILE, lines=True) in read.text


@pytest.mark.parametrize("path", ACTION_PATHS)
async def test_dialog_and_result_render_hostile_values_as_text(asked: Asked, path: str) -> None:
    for answer in (
        await asked.client.get(address(path), params=FORM),
        await asked.client.post(address(path), data=FORM),
    ):
        assert answer.status_code in {200, 204}, answer.text
        check(answer.text)


@pytest.mark.parametrize("path", [*VIEW_PATHS, *ACTION_PATHS])
async def test_error_renders_hostile_values_as_text(asked: Asked, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> None:
        raise MisuseError(HOSTILE)

    monkeypatch.setattr(DatabaseBrokers, "ask_any", ask)
    answer = await asked.client.get(address(path), params=FORM)
    assert answer.status_code in {200, 400}
    check(answer.text)


async def test_body_is_erased_or_the_page_shows_the_reason_it_was_not(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, form = address("/messages/{id}/erase"), {"topic": "orders"}
    for found, erased, says in ((1, 1, "is erased"), (1, 0, "was erased before"), (0, 0, "has no key for")):
        result = ErasedMessages(id=PARAMETERS["id"], found=found, erased=erased)

        async def ask(*_: object, result: ErasedMessages = result) -> Erased:
            return Erased(results=[result])

        monkeypatch.setattr(DatabaseBrokers, "ask_any", ask)
        answer = await asked.client.post(path, data=form)
        assert says in answer.headers.get("hx-trigger", "") + answer.text
