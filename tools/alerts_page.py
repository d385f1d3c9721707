"""The page of alerts, made from the rules: docs/alerts.md."""

from __future__ import annotations

from txmsg.broker.alerts.conditions import scope_of
from txmsg.broker.alerts.config import BUILT_IN, THRESHOLDS
from txmsg.metrics.catalogue import Scope
from txmsg.metrics.rules import ALERTS, Alert

_HEAD = """# Alerts

Brokers raise alerts themselves, for those without Prometheus. Generated from `txmsg/metrics/rules.py` by `make
generate`; [the same rules for Prometheus](metrics.md#alerts) are in `deploy/prometheus/txmsg-rules.yml`.

Without further settings, alerts are written to the log of the broker that sees them. `txmsg broker --alerts FILE`
tells receivers, too. Use the same file for all brokers of a database: any of them sees an alert, and any of them
tells of it.

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
- `severity = "critical"`: the receiver is told of critical alerts only.
- A webhook gets the JSON of Prometheus' Alertmanager (version 4) by POST, and must answer 2xx within 10 s; redirects
  are not followed. `X-Txmsg-Notification` is the same when a notification is repeated.
- E-mail goes by STARTTLS; `tls = "tls"` is for servers that begin with TLS, `tls = "none"` for one without, which
  gets no password.
- A command gets the same JSON on its standard input and a line in `TXMSG_SUBJECT`, without a shell. It must end with
  status 0 within 10 s; then it is killed, with what it has started in its session.
- A rule of your own runs one statement in a PostgreSQL that you name, in a transaction that only reads, for `timeout`
  (5 s) at most, once per `broker.alerts.interval_s`. It returns one number, or rows with a column `value` and others
  that are labels, of which the first 100 count. It holds `above` or `below` a threshold. While it fails, its alerts
  stay as they are, and after 5 minutes `TxmsgRuleFailed` fires.

## States

An alert is *pending* from when its condition holds, *firing* when it has held for the time of its rule, and
*resolved* when it has not held for `broker.alerts.keep_firing_s`, so one that comes and goes is one alert. Receivers
are told when it fires, again every `broker.alerts.repeat_s`, and when it is resolved. All that changes in one look is
one notification, of at most 100 alerts. The [settings](settings.md) are live, unless they say otherwise.

State and notifications are in the Notify database, and its clock counts. So an alert fires once, however many brokers
run, and survives their restarts. Each receiver is told at least once and in order: what was on its way when its
broker died comes again, from another one. A receiver that fails is tried again, after 10 s up to 5 minutes, for a
day; then, or beyond 1,000 that wait, the oldest are dropped. Resolved alerts are kept for 30 days, and 10,000 at
most.

## Commands

    txmsg alert list
    txmsg alert history --limit 20
    txmsg alert silence rule=TxmsgGroupBehind group=shop* --for 2h --reason "big import"
    txmsg alert unsilence 7
    txmsg alert test

A silence holds receivers off while all its matchers fit: the rule, the group, the topic, or any label. Alerts still
fire and are listed; those that fire when it ends are told of then. Receivers that were told of an alert are told of
its end during a silence, too. `txmsg alert test` tells each receiver of the broker that is asked.

## Rules of brokers

Those of the database are looked at by one broker at a time; if it dies, by another one a minute later.
Those of a broker are looked at by each for itself, and end with it. Thresholds with a setting can be changed: `txmsg
config set broker.alerts.group_behind_s 10m`. `broker.alerts.off` names rules that are not wanted.

| Alert | Severity | After | Of | Condition | Threshold | What to do |
|---|---|---|---|---|---|---|
"""
_UNSEEN = """
## Not seen by brokers

- A Notify database that is away: nothing can be stored then. Have something outside look at `/readyz` of brokers.
- Processes that are not brokers: MetaQ servers with the disks of their logs, page servers, and applications. Of
  tailers only what the database knows: whether one tails, how far it is, and its slot.
- The death of the last broker: nothing is left to see it.
- The disk of a PostgreSQL on another machine, or whose role may not know its directory (`grant pg_read_all_settings`).
  `TxmsgSegmentsTooLarge` and `TxmsgSlotInDanger` come before it is full.
- What needs several processes, or histograms over time. Only Prometheus evaluates these:

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
