"""Checks of MetaQ logs, agents, gateways and pages."""

from __future__ import annotations

from typing import Final

from txmsg.checks.check import CRITICAL, WARNING, Check
from txmsg.checks.conditions import PAIR, LevelCondition, PromQL, RiseCondition

LOG_UNREADABLE: Final = Check(
    "log-opens",
    CRITICAL,
    "the log {log} cannot be opened: {error}",
    why="it cannot be read",
    fix="`txmsg metaq check DIRECTORY` says what is damaged; at a server, look at its log",
)
LOG_FAILED: Final = Check(
    "log-failed",
    CRITICAL,
    "the log at {instance} accepts no appends",
    why="producers and tailers wait, or get errors, and write-ahead log of the database is kept meanwhile",
    fix="/readyz and its log give the reason. On a full disk, give it a larger one, or keep less: --retention and "
    "--retention-size of `txmsg metaq serve`",
    condition=LevelCondition("txmsg_log_failed", "==", 1),
    for_s=60,
)
LOG_COPIES_MISSING: Final = Check(
    "log-copies-missing",
    CRITICAL,
    "the log at {instance} has {value} copies fewer than its appends wait for",
    why="appends wait",
    fix="start the missing copies; `txmsg metaq status` lists the copies that reported recently",
    condition=LevelCondition("txmsg_log_copies_missing", ">", 0),
    for_s=60,
)
LOG_COPY_BEHIND: Final = Check(
    "log-copy-behind",
    WARNING,
    "the leader of the copy {instance} has not answered for {value:duration}",
    why="the copy lacks what the leader has written since",
    fix="check that the leader runs. The log of the copy gives the reason for waiting",
    condition=LevelCondition("txmsg_log_follow_silent_seconds", ">", 60),
    for_s=60,
)
LOG_SYNC_SLOW: Final = Check(
    "log-sync-slow",
    WARNING,
    "1 percent of the syncs of the log at {instance} take over {value:duration}",
    why="each append waits for a sync",
    fix="check its disk",
    condition=PromQL(
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(txmsg_log_sync_seconds_bucket[5m]))) > 0.5"
    ),
    for_s=600,
)
LOG_GROUP_BEHIND: Final = Check(
    "log-group-behind",
    WARNING,
    "group {group} in topic {topic} of a log is {value:duration} behind",
    why="its members see messages late",
    fix="check that a member of the group is running (`txmsg group list --log`). If so, add members, or queues",
    condition=LevelCondition("txmsg_log_group_lag_seconds", ">", 300, by=PAIR),
    for_s=300,
)
LOG_USERS_UNKNOWN: Final = Check(
    "log-users-unknown",
    CRITICAL,
    "users are not known, so no client is admitted: no broker of --access-from has sent them",
    why="no client can append or read",
    fix="start these brokers, or correct --access-from",
)

# ---- agents

AGENT_HELD: Final = Check(
    "agent-held",
    CRITICAL,
    "{instance} reads nothing of its source {source}",
    why="the log lacks its lines, which are lost if their files go",
    fix="`txmsg agent status` shows the reason, and what to do: the spool is full because the log is unavailable, or "
    "damaged; the log refuses appends; or a mount does not answer. Do not remove the files until this is fixed",
    condition=LevelCondition("txmsg_agent_held", ">", 0),
    for_s=60,
)
AGENT_UNREADABLE: Final = Check(
    "agent-unreadable",
    CRITICAL,
    "{instance} cannot read {value} files of its source {source}",
    why="the log lacks their lines",
    fix="`txmsg agent status` names them. Give the agent's user permission, or check the disk or the mount; they are "
    "tried again every 30 s. To go on without the rest of a file, delete it",
    condition=LevelCondition("txmsg_agent_unreadable_files", ">", 0),
    for_s=60,
)
AGENT_SPOOL_FILLS: Final = Check(
    "agent-spool-fills",
    WARNING,
    "the spool of {source} at {instance} is {value:share} full",
    why="a full spool stops reading",
    fix="the log is unavailable, or slower than the files grow: `txmsg agent status` shows the reason",
    condition=LevelCondition("txmsg_agent_spool_used_ratio", ">", 0.5),
    for_s=60,
)
AGENT_BEHIND: Final = Check(
    "agent-behind",
    WARNING,
    "{instance} has {value:size} of {source} left to read",
    why="readers of the log see lines late",
    fix="raise lines_per_s if it is limited, or divide the paths among several sources: each has its own thread",
    condition=PromQL("txmsg_agent_unread_bytes > 268435456 unless txmsg_agent_paused == 1"),
    for_s=600,
)
AGENT_LOST_LINES: Final = Check(
    "agent-lost-lines",
    CRITICAL,
    "{value:size} of {source} at {instance} were lost before they were read",
    why="these lines are lost",
    fix="rotate later, or keep more files; use `create` instead of `copytruncate`, which can lose lines",
    condition=RiseCondition("txmsg_agent_lost_bytes_total", 3600),
)

# ---- pages, gateways

PAGE_STALE: Final = Check(
    "page-stale",
    WARNING,
    "the page at {instance} has had no figures for {value:duration}",
    why="visitors see old values",
    fix="check the job that computes the figures, and its database",
    condition=LevelCondition("txmsg_page_figures_age_seconds", ">", 60),
    for_s=60,
)
PAGE_EMPTY: Final = Check(
    "page-empty",
    CRITICAL,
    "the figures cannot be read from their database",
    why="visitors see nothing",
    fix="check the job that computes the figures, and its database",
)
GATEWAY_ALONE: Final = Check(
    "gateway-alone",
    CRITICAL,
    "no broker can be reached: {error}",
    why="RocketMQ's clients can send and receive nothing",
    fix="start these brokers, or correct --broker of the gateway",
)
GATEWAY_CLOSED: Final = Check(
    "gateway-closed",
    CRITICAL,
    "{error}",
    why="no client is admitted",
    fix="do what the reason says",
)
