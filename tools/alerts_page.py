"""The page of alerts, made from the rules: docs/alerts.md."""

from __future__ import annotations

from txmsg.broker.alerts.conditions import scope_of
from txmsg.broker.alerts.config import BUILT_IN, THRESHOLDS
from txmsg.metrics.catalogue import Scope
from txmsg.metrics.rules import ALERTS, Alert

_HEAD = """# Alerts

Brokers can raise alerts themselves, without Prometheus. Generated from `txmsg/metrics/rules.py` by `make
generate`; [the same rules for Prometheus](metrics.md#alerts) are in `deploy/prometheus/txmsg-rules.yml`.

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

| Alert | Severity | After | Of | Condition | Threshold | What to do |
|---|---|---|---|---|---|---|
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

| Alert | Severity | Condition |
|---|---|---|
"""


def alerts_page() -> str:
    """The text of the page."""
    unseen = [alert for alert in ALERTS if alert.name not in BUILT_IN]
    return "".join([_HEAD, *map(_row, BUILT_IN.values()), _UNSEEN, *map(_unseen_row, unseen)])


def _row(alert: Alert) -> str:
    of = "database" if scope_of(alert) is Scope.DATABASE else "broker"
    name = THRESHOLDS.get(alert.name)
    setting = f"`broker.alerts.{name}`" if name else ""
    return (
        f"| `{alert.name}` | {alert.severity.value} | {alert.for_} | {of} | `{alert.expr}` | {setting} | "
        f"{alert.action} |\n"
    )


def _unseen_row(alert: Alert) -> str:
    return f"| `{alert.name}` | {alert.severity.value} | `{alert.expr}` |\n"
