"""The pages of alerts, generated from the list of checks: docs/alerts.md, and docs/alerts.zh.md in Chinese."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from page_table import table

from txmsg.checks.catalogue import BUILT_IN, CHECKS, RULES
from txmsg.checks.check import Check, words_of
from txmsg.checks.conditions import LevelCondition, ShareCondition, scope_of
from txmsg.checks.texts import documented, sentence
from txmsg.metrics.catalogue import Scope

_HEAD = """# Alerts

Brokers can raise alerts themselves, without Prometheus. Generated from
[the list of checks](../txmsg/checks/catalogue.py) by `make generate`; [the same rules for
Prometheus](metrics.md#alerts) are in `deploy/prometheus/txmsg-rules.yml`. [中文](alerts.zh.md)

By default alerts are written to the log of the broker that evaluates them. With `txmsg broker --alerts FILE`
receivers are notified, too. Use the same file for all brokers of a database, because any of them may evaluate an
alert and send its notifications.

    [receivers.oncall]
    webhook = {env = "ONCALL_URL"}
    severity = "critical"

    [receivers.team]
    email = ["team@example.org"]
    from = "txmsg@example.org"
    smtp = "smtp.example.org:587"
    user = "txmsg"
    password = {file = "/run/secrets/smtp"}

    [receivers.chat]
    command = ["/usr/local/bin/tell-chat", "--channel", "ops"]

    [rules.OrdersWait]
    sql = "select count(*) from orders where shipped_at is null and paid_at < now() - interval '1 hour'"
    database = {env = "SHOP_URL"}
    above = 10
    for = "5m"
    severity = "critical"
    summary = "{{ $value }} paid orders wait for over an hour"
    action = "Look at the warehouse."

- A secret (`webhook`, `password`, `database`) is a text, `{file = "PATH"}` or `{env = "NAME"}`. None is shown or
  logged.
- `severity = "critical"`: the receiver is notified of critical alerts only.
- A webhook gets the JSON of Prometheus' Alertmanager (version 4) by POST, and must answer 2xx within 10 s; redirects
  are not followed. `X-Txmsg-Notification` is the same when a notification is repeated.
- E-mail uses STARTTLS. Use `tls = "tls"` for servers with implicit TLS, and `tls = "none"` for a server without TLS,
  which gets no password.
- A command is run without a shell; it gets the same JSON on standard input and a summary line in `TXMSG_SUBJECT`. Of
  the broker's environment it gets `PATH`, `HOME`, `USER`, `LANG`, `LC_ALL`, `TZ` and `TMPDIR` only: a program that
  needs a secret reads it from a file. It must exit with status 0 within 10 s; after that it is killed, together with
  the processes of its session.
- A custom rule runs one statement in a PostgreSQL database that you name, in a read-only transaction, for at most
  `timeout` (5 s), once per `broker.alerts.interval_s`. The statement returns one number, or rows with a column `value`
  and columns for labels, 10,000 rows at most; the 100 furthest beyond the threshold raise alerts, and the log counts
  the others. The condition is `above` or `below` a threshold. While the rule
  fails, its alerts do not change, and after 5 minutes `TxmsgRuleFailed` fires.

## States

An alert is *pending* when its condition begins to hold, *firing* when it has held for the rule's duration, and
*resolved* when it has not held for `broker.alerts.keep_firing_s`, so a flapping condition is one alert. Receivers are
notified when it fires, every `broker.alerts.repeat_s` after that, and when it is resolved. All changes of one round are
one notification, of at most 100 alerts. The [settings](settings.md) are live, unless they say otherwise.

State and notifications are stored in the Notify database, and use its clock. So an alert fires once, regardless of the
number of brokers, and survives restarts. Notifications are delivered at least once and in order: if a broker dies while
it sends one, another broker repeats it. A failed notification is retried for a day, at intervals of 10 s to 5 minutes;
after that, or if more than 1,000 are waiting, the oldest are dropped. Resolved alerts are kept for 30 days, and at most
10,000 of them.

## Commands

    txmsg alert list
    txmsg alert history --limit 20
    txmsg alert silence rule=TxmsgGroupBehind group=shop* --for 2h --reason "big import"
    txmsg alert unsilence 7
    txmsg alert test

A silence suppresses notifications of alerts that match all its matchers: the rule, the group, the topic, or any label.
Alerts still fire and are listed; receivers are notified of those that still fire when the silence ends. If a receiver
was notified that an alert fires, it is notified when the alert is resolved, even during a silence. `txmsg alert test`
sends a test notification to each receiver of the broker that executes it.

## Rules of brokers

Rules of the database are evaluated by one broker at a time; if it dies, another takes over a minute later. Rules of a
broker are evaluated by each broker for itself, and their alerts end with it. Thresholds with a setting can be changed:
`txmsg config set broker.alerts.group_behind_s 10m`. `broker.alerts.off` lists rules to switch off.
"""
_UNSEEN = """
## Not seen by brokers

- An unavailable Notify database: nothing can be stored then. Monitor `/readyz` of brokers from outside.
- Processes that are not brokers: MetaQ servers with the disks of their logs, page servers, and applications. For
  tailers, brokers see only what the database knows: whether one is running, its position, and its slot.
- The death of the last broker: no process is left to notice it.
- The disk of a PostgreSQL on another machine, or one whose role cannot read the data directory's name
  (`grant pg_read_all_settings`). `TxmsgSegmentsTooLarge` and `TxmsgSlotInDanger` fire before it is full.
- Conditions across several processes, or histograms over time. Only Prometheus evaluates these:
"""
_OTHERS = """
## Checks without an alert

What `txmsg doctor`, `txmsg db check`, the console and `/readyz` say beyond the alerts, which they report under
the name without `Txmsg`: `TxmsgGroupBehind` is `group-behind`. `critical` is a PROBLEM in `txmsg doctor`; a `note`
needs no action.
"""
_HEAD_ZH = """# 告警

broker 无需 Prometheus 就能自行发出告警。本页由 `make generate` 从[检查列表](../txmsg/checks/catalogue.py)生成；
配置、状态和命令见[英文页](alerts.md)。`critical`：消息在等待、已丢失或有危险；`warning`：应在当天处理。

## broker 的规则

阈值有对应设置的，可以修改：`txmsg config set broker.alerts.group_behind_s 10m`。
"""
_UNSEEN_ZH = """
## 只由 Prometheus 判断的规则
"""


class _Columns(NamedTuple):
    """The names of columns in one language."""

    broker: str
    database: str
    built_in: str
    unseen: str


_ENGLISH = _Columns(
    "broker",
    "database",
    "Alert | Severity | After | Of | Condition | Threshold | What is wrong | Why it matters | What to do",
    "Alert | Severity | After | Condition | What is wrong | Why it matters | What to do",
)
_CHINESE = _Columns(
    "broker",
    "数据库",
    "告警 | 级别 | 持续 | 对象 | 条件 | 阈值 | 问题 | 影响 | 处理",
    "告警 | 级别 | 持续 | 条件 | 问题 | 影响 | 处理",
)
_OTHER_COLUMNS = "Check | Severity | What is wrong | Why it matters | What to do"


def alerts_page() -> str:
    """Return the text of docs/alerts.md."""
    others = [[f"`{check.name}`", check.severity.value, *_words(check)] for check in CHECKS if check.condition is None]
    return "".join([*_rules(_HEAD, _UNSEEN, _ENGLISH, "en"), _OTHERS, table(_OTHER_COLUMNS, others)])


def alerts_page_zh() -> str:
    """Return the text of docs/alerts.zh.md."""
    return "".join(_rules(_HEAD_ZH, _UNSEEN_ZH, _CHINESE, "zh"))


def _rules(head: str, unseen: str, columns: _Columns, language: str) -> Iterator[str]:
    def row(check: Check, *more: str) -> list[str]:
        return [f"`{check.alert}`", check.severity.value, check.for_, *more, *_words(check, language)]

    yield head
    yield table(
        columns.built_in,
        [
            row(
                check,
                columns.database if scope_of(check.condition) is Scope.DATABASE else columns.broker,
                f"`{check.expr}`",
                _setting_of(check),
            )
            for check in BUILT_IN.values()
        ],
    )
    yield unseen
    yield table(columns.unseen, [row(check, f"`{check.expr}`") for check in RULES if check.alert not in BUILT_IN])


def _words(check: Check, language: str = "en") -> list[str]:
    texts = map(documented, words_of(check, language))
    return list(map(sentence, texts) if language == "en" else texts)


class _Asked:
    """Records the threshold that a condition reads."""

    name = ""

    def __getattr__(self, name: str) -> float:
        self.name = name
        return 0.0


def _setting_of(check: Check) -> str:
    asked = _Asked()
    if isinstance(check.condition, LevelCondition | ShareCondition) and callable(check.condition.threshold):
        check.condition.threshold(asked)  # type: ignore[arg-type]
    return f"`broker.alerts.{asked.name}`" if asked.name else ""
