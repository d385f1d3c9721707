"""The file of receivers and rules: its contents, and errors that name the place and no secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from txmsg.broker.alerts.file import CommandReceiver, EmailReceiver, WebhookReceiver, read_alert_file
from txmsg.checks.check import Severity
from txmsg.errors import MisuseError

PAGE = Path(__file__).parents[2] / "docs" / "alerts.md"
ENVIRONMENT = {"ONCALL_URL": "https://hooks.example.org/T0KEN", "SHOP_URL": "postgresql://shop:GEHEIM@db/shop"}


def test_documented_receivers_file_is_read_and_its_secrets_are_not_shown(tmp_path: Path) -> None:
    [example] = re.findall(r"(?:^(?:    .*)?\n)+", PAGE.read_text().partition("\n- A secret")[0], re.MULTILINE)[-1:]
    password, file = tmp_path / "smtp", tmp_path / "alerts.toml"
    password.write_text("PASSW0RT\n")
    file.write_text(re.sub(r"^    ", "", example, flags=re.MULTILINE).replace("/run/secrets/smtp", str(password)))
    found = read_alert_file(file, ENVIRONMENT)
    oncall, team, chat = (found.receivers[name].target for name in ("oncall", "team", "chat"))
    assert isinstance(oncall, WebhookReceiver)
    assert oncall.url.reveal() == ENVIRONMENT["ONCALL_URL"]
    assert isinstance(team, EmailReceiver)
    assert team.password is not None
    assert (team.host, team.port, team.tls, team.password.reveal()) == ("smtp.example.org", 587, "starttls", "PASSW0RT")
    assert isinstance(chat, CommandReceiver)
    assert found.receivers["oncall"].severity is Severity.CRITICAL
    [rule] = found.rules
    assert (rule.name, rule.above, rule.for_s, rule.severity) == ("OrdersWait", 10.0, 300.0, Severity.CRITICAL)
    shown = repr(found)
    assert not any(secret in shown for secret in ("T0KEN", "GEHEIM", "PASSW0RT"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[receivers.a]", "must have one of webhook, email, command"),
        ('[receivers.a]\nwebhook = "ftp://x/SECRET"', "webhook must be a URL"),
        ('[receivers.a]\nwebhook = "http://x:SECRET/"', "webhook must be a URL"),
        ('[receivers.a]\nwebhook = "https://user:SECRET@x/"', "webhook must be a URL without a user and a password"),
        ('[receivers.a]\nwebhook = "https://SECRET@x/"', "webhook must be a URL without a user and a password"),
        ('[receivers.a]\nwebhook = {env = "NOT_SET"}', "names the variable 'NOT_SET', which is not set"),
        ('[receivers.a]\nwebhook = {file = "/not/there"}', "cannot be read: FileNotFoundError"),
        ('[receivers.a]\nwebhook = "http://x/"\nseverity = "bad"', "severity must be one of critical, warning"),
        ('[receivers.a]\nwebhook = "http://x/"\ntypo = 1', "has 'typo', which is not known"),
        ('[receivers."a b"]\nwebhook = "http://x/"', "is not a table whose name"),
        ('[receivers.a]\ncommand = ["ls"]', "must begin with an absolute path"),
        ('[receivers.a]\ncommand = "/bin/ls"', "must have a list of texts command"),
        ('[receivers.a]\nemail = ["x"]\nfrom = "a@b"\nsmtp = "h:25"', "'x' is not an e-mail address"),
        ('[receivers.a]\nemail = ["x@y"]\nfrom = "a@b"\nsmtp = "h"', "smtp must be HOST:PORT"),
        ('[receivers.a]\nemail = ["x@y"]\nfrom = "a@b"\nsmtp = "h:25"\nuser = "u"', "user and password go together"),
        (
            '[receivers.a]\nemail = ["x@y"]\nfrom = "a@b"\nsmtp = "h:25"\n'
            'user = "u"\npassword = "SECRET"\ntls = "none"',
            "a password is not sent without encryption",
        ),
        ("[rules.TxmsgDeadLetters]\nabove = 3", "is a built-in rule"),
        (
            '[rules.R]\nsql = "select 1"\ndatabase = "postgresql://h/d"\nsummary = "s"',
            "must have one of above and below",
        ),
        ('[rules.R]\nsql = "x"\ndatabase = "mysql://u:SECRET@h/d"\nsummary = "s"\nabove = 1', "URL of a PostgreSQL"),
        ('[rules.R]\nsql = "x"\ndatabase = "postgresql://h/d"\nsummary = "s"\nabove = "1"', "above must be a number"),
        (
            '[rules.R]\nsql = "x"\ndatabase = "postgresql://h"\nsummary = "s"\nabove = 1\nfor = "2d"',
            "must be a duration",
        ),
        ("receivers = 3", "must have at most 20 tables"),
        ("[recievers.a]", "has 'recievers', which is not known"),
        ("[receivers", "is not a file of alerts in TOML"),
    ],
)
def test_file_error_names_its_place_and_no_secret(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text(content)
    with pytest.raises(MisuseError, match=re.escape(words)) as told:
        read_alert_file(file, {})
    assert str(file) in str(told.value)
    assert "SECRET" not in str(told.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=r"alerts cannot be read from .*none\.toml: No such file"):
        read_alert_file(tmp_path / "none.toml", {})
