"""The console without a browser or broker: texts, security, and pages that report why they are empty."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from string import Formatter

import httpx2
import pytest

import txmsg.ops.console
from tests.console.conftest import csrf_in
from tests.console.served import IDLE, asked_console
from txmsg.administration.alerts import ActiveAlert, AlertState
from txmsg.checks.brokers import RULE_FAILED
from txmsg.checks.catalogue import CHECKS, RULES
from txmsg.checks.check import Severity
from txmsg.checks.texts import chinese, fields_in
from txmsg.errors import MisuseError, OutcomeUnknown
from txmsg.ops.cli.console import console
from txmsg.ops.console import app as console_app
from txmsg.ops.console.actions import Confirmation, Field
from txmsg.ops.console.app import all_renderers
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.ops.console.pages import ACTIONS, VIEWS
from txmsg.ops.console.sections import SECTIONS
from txmsg.ops.console.server import ConsoleConfig
from txmsg.ops.console.texts import action_of, summary_of, texts
from txmsg.ops.console.user_databases import UserDatabases
from txmsg.ops.page.language import language_of

_PACKAGE = Path(txmsg.ops.console.__file__).parent
_TEMPLATES = {path.name: path.read_text() for path in (_PACKAGE / "templates").glob("*.html")}
_NOBODY = "127.0.0.1:1"


@pytest.fixture
async def client() -> AsyncIterator[httpx2.AsyncClient]:
    """Requests of the console's own pages; its broker is down."""
    async with asked_console(UserDatabases({"notify": [_NOBODY]}, IDLE)) as asking:
        asking.desks.open["notify"].watch.trouble = "no broker answers here"
        asking.client.headers["X-Txmsg-Csrf"] = csrf_in((await asking.client.get("/login")).text)
        yield asking.client


# ---- options


@pytest.mark.parametrize(
    ("variable", "brokers"),
    [("a:1,b:1;c:1", ("a:1,b:1", "c:1")), ("a:7700, b:7700; c:7700", ("a:7700, b:7700", " c:7700"))],
)
def test_environment_variable_names_brokers_of_several_databases(
    variable: str, brokers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXMSG_BROKERS", variable)
    assert console.make_context("console", []).params["brokers"] == brokers


# ---- texts


def test_both_languages_have_the_same_texts_with_the_same_placeholders() -> None:
    english, chinese = texts("en"), texts("zh")
    assert english.keys() == chinese.keys()

    def gaps(text: str) -> set[str]:
        return {name for _, name, _, _ in Formatter().parse(text) if name}

    assert {key: gaps(text) for key, text in english.items()} == {key: gaps(text) for key, text in chinese.items()}
    assert all(text.strip() for text in (*english.values(), *chinese.values()))


def test_built_in_alerts_are_translated_and_custom_rules_are_not() -> None:
    english = {check.name: check for check in CHECKS}
    words_of = chinese()
    assert {check.name for check in (*RULES, RULE_FAILED)} <= words_of.keys() <= english.keys()
    for name, words in words_of.items():
        check = english[name]
        for text, translated in zip((check.what, check.why, check.fix), words, strict=True):
            assert fields_in(translated) == fields_in(text), name
    labels = {"messaging_consumer_group_name": "mail", "messaging_destination_name": "t"}
    alert = ActiveAlert(
        id=1,
        source="(database)",
        rule="TxmsgDeadLetters",
        severity=Severity.WARNING,
        state=AlertState.FIRING,
        labels=labels,
        value=3.0,
        summary="group mail in topic t has 3 dead letters",
        action="see",
        since=datetime(2026, 1, 1, tzinfo=UTC),
        seen_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert (summary_of(alert, "en"), action_of(alert, "en")) == (alert.summary, "see")
    assert summary_of(alert, "zh") == "消费组 mail 在主题 t 中有 3 条死信"
    assert "dead-letter list" in action_of(alert, "zh")
    own = replace(alert, rule="OrdersWait")
    assert (summary_of(own, "zh"), action_of(own, "zh")) == (alert.summary, "see")


def test_every_text_used_by_templates_and_pages_exists() -> None:
    code = [path.read_text() for path in (_PACKAGE / "pages").glob("*.py")]
    named = {
        key for text in (*_TEMPLATES.values(), *code) for key in re.findall(r"""\bt\(["']([\w.]+)["'][,)]""", text)
    }
    assert len(named) > 60
    assert named <= texts("en").keys()
    assert {f"nav.{section.key}" for section in SECTIONS} <= texts("en").keys()


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("de-DE,en;q=0.7,zh;q=0.3", "en"),
        ("fr;q=x,*", "en"),
        ("zh", "zh"),
    ],
)
def test_language_is_the_preferred_one_of_the_browser(accepted: str, language: str) -> None:
    assert language_of(accepted) == language


def test_unknown_word_of_a_newer_broker_is_shown_untranslated() -> None:
    renderer = all_renderers()["zh"]
    assert renderer.word("messages.state_", "rolled back") == texts("zh")["messages.state_rolled_back"]
    assert renderer.word("messages.state_", "frozen") == "frozen"


# ---- templates


def test_templates_have_no_scripts_styles_or_unescaped_values() -> None:
    for name, text in _TEMPLATES.items():
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son\w+=|javascript:|hx-on|\|\s*safe\b", text), name
        assert not re.search(r'(?:src|href)="https?:', text), name


def test_form_posts_exactly_the_given_text() -> None:
    typed = 'a\u202eb\u3000c\u200d"<\t\r\n'
    fields = [
        Field(name="key", kind="hidden", value=typed),
        Field(name="text", value=typed),
        Field(name="area", kind="area", value=typed),
        Field(name="select", kind="select", value=typed, choices=[(typed, "one")]),
    ]
    confirmation = Confirmation(title="a\u202eb", says=[], button="do it", fields=fields)
    page = all_renderers()["en"].page("dialog.html", {"error": None, "action": "/", "confirmation": confirmation})
    values = re.findall(r'<(?:input|option)[^>]* value="([^"]*)"|<textarea[^>]*>([^<]*)<', page)
    assert [html.unescape(one or other) for one, other in values] == [typed] * 4
    assert "\r" not in page  # a browser would read a line feed
    assert "a\\u202eb" in page  # but people see it


def test_every_field_value_is_rendered_as_typed() -> None:
    found = re.findall(r'<(?:input|option|button)[^>]* value="{{ ([^}]*) }}"', "".join(_TEMPLATES.values()))
    assert len(found) > 8
    assert [each for each in found if not each.endswith("|as_typed")] == []


def test_vendored_scripts_equal_their_npm_releases() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (_PACKAGE / "assets").glob("*/*.js")}
    assert found == {
        "htmx.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
        "idiomorph.min.js": "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96",
    }  # htmx.org 2.0.11, idiomorph 0.8.0: both 0BSD
    for directory in ("htmx", "idiomorph"):
        assert "Zero-Clause BSD" in (_PACKAGE / "assets" / directory / "LICENSE").read_text()


# ---- security


@pytest.mark.parametrize("listen", ["0.0.0.0:7790", "[::]:7790", "10.0.0.1:7790", "example.org:7790"])
def test_listening_beyond_localhost_requires_tls(listen: str) -> None:
    with pytest.raises(MisuseError, match=r"could be read on their way: give --tls-cert .*ssh -L"):
        ConsoleConfig(databases={}, listen=listen)
    assert not ConsoleConfig(databases={}, listen=listen, insecure=True).asks_everybody


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7790", "127.0.0.1.evil.example", "127.0.0.1:80.evil.example"]
)
async def test_request_with_a_foreign_host_header_reads_nothing(client: httpx2.AsyncClient, host: str) -> None:
    answer = await client.get("/notify", headers={"Host": host})
    assert answer.status_code == 421
    assert "notify" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:7791"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:7790"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
@pytest.mark.parametrize("path", ["/notify/brokers/b/drain", "/preferences", "/operations/1/stop"])
async def test_cross_site_request_changes_nothing(
    client: httpx2.AsyncClient, headers: dict[str, str], path: str
) -> None:
    answer = await client.post(path, headers=headers, data={"theme": "dark"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_other_sites_can_link_to_pages_but_not_load_them(client: httpx2.AsyncClient) -> None:
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert (await client.get("/notify", headers=foreign | {"Sec-Fetch-Mode": "no-cors"})).status_code == 403
    assert (await client.get("/notify", headers=foreign | {"Sec-Fetch-Mode": "navigate"})).status_code == 503


@pytest.mark.parametrize("path", ["/notify", "/assets/console.js", "/nowhere", "/notify/brokers/b/drain"])
async def test_every_answer_forbids_foreign_scripts_and_frames(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_action_requires_a_same_origin_post() -> None:
    assert ACTIONS
    assert not {action.path for action in ACTIONS} & {view.path for view in VIEWS}


# ---- pages


@pytest.mark.parametrize("path", sorted({view.path for view in VIEWS if "{" not in view.path}))
async def test_page_reports_that_no_broker_answers(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.get(f"/notify{path}")
    assert answer.status_code in {200, 503}
    assert "No broker of notify answers." in answer.text
    assert "no broker answers here" in answer.text


async def test_action_reports_its_error(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/notify/brokers/b/drain")
    assert "Nothing was done" in answer.text
    assert "<form hx-post" not in answer.text


@pytest.mark.parametrize(
    ("path", "typed"),
    [
        ("new/topic", {"topic": "t", "queues": "-1"}),
        ("new/topic", {"topic": "t", "queues": "5e9"}),
        ("new/topic", {"topic": "t", "queues": "2.7"}),
        ("groups/g/alter", {"retries": "-1"}),
        ("groups/g/seek", {"topic": "t", "to": "latest", "queue": "5000000000"}),
        ("settings/broker.x/set", {"value": "1", "version": "1" + "0" * 30}),
        ("settings/broker.x/rollback/1" + "0" * 30, {"version": "1"}),
    ],
)
async def test_invalid_number_is_refused_in_the_dialog(
    client: httpx2.AsyncClient, path: str, typed: dict[str, str]
) -> None:
    answer = await client.post(f"/notify/{path}", headers={"Sec-Fetch-Site": "same-origin"}, data=typed)
    assert answer.status_code == 200
    assert "whole number" in answer.text


async def test_response_to_an_unexpected_error_has_the_security_headers(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the console")

    monkeypatch.setattr(console_app._ConsoleApi, "_missing", fail)
    assert isinstance(client._transport, httpx2.ASGITransport)
    client._transport.raise_app_exceptions = False
    answer = await client.get("/nowhere")
    assert answer.status_code == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_action_of_unknown_outcome_is_not_reported_as_failed(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object) -> None:
        raise OutcomeUnknown("no answer came")

    monkeypatch.setattr(DatabaseBrokers, "ask_any", ask)
    answer = await client.post("/notify/groups/g/stop", headers={"Sec-Fetch-Site": "same-origin"})
    assert "no answer came" in answer.text
    assert "It is not known whether this was done" in answer.text
    assert "Nothing was done" not in answer.text


async def test_theme_and_language_are_stored_and_redirect_within_this_console_only(client: httpx2.AsyncClient) -> None:
    own = {"Sec-Fetch-Site": "same-origin"}
    answer = await client.post("/preferences", headers=own, data={"language": "zh", "back": "/notify/brokers"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/notify/brokers")
    await client.post("/preferences", headers=own, data={"theme": "dark"})
    page = (await client.get("/notify")).text
    assert '<html lang="zh" data-theme="dark">' in page
    assert "总览" in page
    for back in ("//evil.example", "https://evil.example", "/\\evil.example"):
        answer = await client.post("/preferences", headers=own, data={"theme": "dark", "back": back})
        assert answer.headers["location"] == "/"


async def test_too_large_form_is_refused(client: httpx2.AsyncClient) -> None:
    body = b"x" * (console_app.FORM_SIZE_BYTES_MAX + 1)
    answer = await client.post("/notify/brokers/b/drain", headers={"Sec-Fetch-Site": "same-origin"}, content=body)
    assert answer.status_code == 413


async def test_unknown_page_is_404(client: httpx2.AsyncClient) -> None:
    for path in ("/other", "/notify/nothing", "/operations/7"):
        assert (await client.get(path)).status_code == 404
