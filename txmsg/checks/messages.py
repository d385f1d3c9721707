"""Checks of groups, transactions, segments and outboxes."""

from __future__ import annotations

from typing import Final

from txmsg.checks.check import CRITICAL, WARNING, Check
from txmsg.checks.conditions import JOB, PAIR, LevelCondition, RiseCondition, ShareCondition

GROUP_BEHIND: Final = Check(
    "group-behind",
    WARNING,
    "group {group} in topic {topic} is {value:duration} behind",
    why="its consumers see messages late",
    fix="check that a consumer of the group is running (`txmsg group show`). If so, raise its concurrency, or add "
    "processes",
    condition=LevelCondition("txmsg_group_lag_seconds", ">", lambda alerts: alerts.group_behind_s, by=PAIR),
    for_s=300,
)
GROUP_PAUSED: Final = Check(
    "group-paused",
    WARNING,
    "{value} groups get single messages from {instance}, because all their handlers fail",
    why="their messages wait until a single one succeeds",
    fix="`txmsg group show` has the last error",
    condition=LevelCondition("txmsg_delivery_paused_groups", ">", 0),
    for_s=300,
)
DEAD_LETTERS: Final = Check(
    "dead-letters",
    WARNING,
    "group {group} in topic {topic} has {value} dead letters",
    why="its handler failed at every attempt, and no operator has acted since",
    fix="`txmsg dead-letter list` shows the errors (of a log with --log LOG); redrive or purge the dead letters",
    condition=LevelCondition("txmsg_group_dead_letters", ">", lambda alerts: alerts.dead_letters, by=PAIR),
    for_s=300,
)
GROUP_UNREAD: Final = Check(
    "group-unread",
    WARNING,
    "{value} messages wait for group {group}, and it has no consumer",
    why="they are kept for it, or dropped unread by retention",
    fix="start its consumers, or `txmsg group delete {group}{option}` if it is not wanted any more",
)
TOPIC_UNUSED: Final = Check(
    "topic-unused",
    WARNING,
    "group {group} reads topic {topic}, which has never had a message",
    why="its name may be misspelt, in the consumer or in the producer",
    fix="`txmsg topic list`; then `txmsg group delete {group}` and `txmsg topic delete {topic}`",
)
TRANSACTIONS_IN_DOUBT: Final = Check(
    "transactions-in-doubt",
    WARNING,
    "a transaction has been undecided for {value:duration} although it is checked",
    why="its messages wait, and later ones of their ordering keys wait behind them",
    fix="check that a client of its producer group is attached and its check listener answers (`txmsg half list`)",
    condition=LevelCondition(
        "txmsg_half_oldest_seconds", ">", lambda alerts: alerts.in_doubt_s, where={"state": "in_doubt"}, by=JOB
    ),
    for_s=300,
)
CHECKS_OVERDUE: Final = Check(
    "checks-overdue",
    WARNING,
    "the check of a transaction has been due for {value:duration}, and nothing checks it",
    why="its messages wait, undecided, and later ones of their ordering keys wait behind them",
    fix="start a client of its producer group that reads its fence: `txmsg half list` names the group, and says if no "
    "client can answer; or decide it by `txmsg half commit` or `rollback`",
    condition=LevelCondition("txmsg_half_overdue_seconds", ">", lambda alerts: alerts.check_overdue_s, by=JOB),
    for_s=60,
)
TRANSACTIONS_PARKED: Final = Check(
    "transactions-parked",
    WARNING,
    "{value} transactions are parked in doubt",
    why="no client could tell whether they committed: their messages wait for an operator",
    fix="`txmsg half list --parked` shows them; `txmsg half commit` and `rollback` decide them, `resume` has them "
    "checked again",
    condition=LevelCondition("txmsg_halves", ">", lambda alerts: alerts.parked, where={"state": "parked"}, by=JOB),
    for_s=300,
)
DROPPED_UNREAD: Final = Check(
    "dropped-unread",
    CRITICAL,
    "messages that a group had not read were dropped",
    why="they are lost for the group",
    fix="the log of the broker names the groups. Raise --retention-max, or set the topics to unread=keep",
    condition=RiseCondition("txmsg_unread_dropped_messages_total", 3600, by=JOB),
)
SEGMENTS_TOO_LARGE: Final = Check(
    "segments-too-large",
    WARNING,
    "segments have {value:share} of the size limit of retention",
    why="they fill the disk of the database",
    fix="a group or a mirror has not read the oldest segment: the broker's log names it",
    condition=ShareCondition(
        "txmsg_segments_bytes", "txmsg_retention_limit_bytes", lambda alerts: alerts.segments_ratio, by=JOB
    ),
    for_s=1800,
)
OUTBOX_WAITS: Final = Check(
    "outbox-waits",
    WARNING,
    "a transaction waits in the outbox of {instance} for {value:duration}",
    why="its messages reach nobody meanwhile",
    fix="check that brokers answer. The service's log says why its outbox is not relayed; `txmsg outbox list` lists "
    "its messages",
    condition=LevelCondition("txmsg_client_outbox_oldest_seconds", ">", 300, by=("job", "instance")),
    for_s=60,
)
OUTBOX_REFUSED: Final = Check(
    "outbox-refused",
    WARNING,
    "brokers refuse {value} transactions in the outbox of {instance}",
    why="their messages reach nobody, although their transactions committed",
    fix="`txmsg outbox list` shows the reason, such as an unknown topic. They are retried every minute",
    condition=LevelCondition("txmsg_client_outbox_refused_rows", ">", 0, by=("job", "instance")),
    for_s=300,
)
