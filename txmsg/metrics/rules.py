"""The alerts on these metrics: when each fires, how bad that is, and what an operator does then.

deploy/prometheus/txmsg-rules.yml and a table of docs/metrics.md are made from this. All processes of one Notify
database have one `job` in Prometheus, so that values of a database are not mixed with those of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from txmsg.metrics.catalogue import ERROR, GROUP, TOPIC


class Severity(Enum):
    """How soon somebody must look."""

    CRITICAL = "critical"
    """Now: messages wait or are lost."""
    WARNING = "warning"
    """Within the day."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. expr: PromQL; `for_`: how long it must hold."""

    name: str
    severity: Severity
    expr: str
    for_: str
    summary: str
    """What is wrong; `{{ }}` as Prometheus has it."""
    action: str
    """What to do."""


_PAIR: Final = f"job, {GROUP}, {TOPIC}"
_OF_PAIR: Final = f"group {{{{ $labels.{GROUP} }}}} in topic {{{{ $labels.{TOPIC} }}}}"
_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING

ALERTS: Final = (
    Alert(
        "TxmsgProcessDown",
        _CRITICAL,
        'up{job=~"txmsg.*"} == 0',
        "1m",
        "{{ $labels.instance }} of {{ $labels.job }} does not answer",
        "Look at its log and start it. Other brokers take over its queues; clients use those.",
    ),
    Alert(
        "TxmsgNotReady",
        _CRITICAL,
        "txmsg_ready == 0 unless on (job, instance) txmsg_draining == 1",
        "2m",
        "{{ $labels.instance }} of {{ $labels.job }} is not ready",
        "Ask its /readyz why: the database, the log or the leases.",
    ),
    Alert(
        "TxmsgNobodyDelivers",
        _CRITICAL,
        "max by (job) (txmsg_lease_held) == 0",
        "1m",
        "no broker of {{ $labels.job }} may deliver",
        "Look at the Notify database, which no broker's heartbeats reach.",
    ),
    Alert(
        "TxmsgGroupBehind",
        _WARNING,
        f"max by ({_PAIR}) (txmsg_group_lag_seconds) > 300",
        "5m",
        f"{_OF_PAIR} is {{{{ $value | humanizeDuration }}}} behind",
        "Is a consumer of it running (`txmsg group show`)? Then give it more concurrency, or more processes.",
    ),
    Alert(
        "TxmsgGroupPaused",
        _WARNING,
        "txmsg_delivery_paused_groups > 0",
        "5m",
        "{{ $value }} groups get single messages from {{ $labels.instance }}, because all their handlers fail",
        "`txmsg group show` has the last error.",
    ),
    Alert(
        "TxmsgDeadLetters",
        _WARNING,
        f"max by ({_PAIR}) (txmsg_group_dead_letters) > 0",
        "5m",
        f"{_OF_PAIR} has {{{{ $value }}}} dead letters",
        "`txmsg dead-letter list` says why; redrive or purge them.",
    ),
    Alert(
        "TxmsgTransactionsInDoubt",
        _WARNING,
        'max by (job) (txmsg_half_oldest_seconds{state="in_doubt"}) > 600',
        "5m",
        "a transaction of {{ $labels.job }} is undecided for {{ $value | humanizeDuration }}, though it was checked",
        "Is a client of its producer group attached, and does its check listener answer (`txmsg half list`)?",
    ),
    Alert(
        "TxmsgTransactionsParked",
        _WARNING,
        'max by (job) (txmsg_halves{state="parked"}) > 0',
        "5m",
        "{{ $value }} transactions of {{ $labels.job }} are parked in doubt",
        "`txmsg half list --parked` shows them; decide them, or resume their checks.",
    ),
    Alert(
        "TxmsgBoundNear",
        _WARNING,
        "txmsg_bound_used_ratio > 0.8",
        "5m",
        "{{ $labels.bound }} of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
        "docs/limits.md says what happens at the bound. Add brokers, or find what is slow.",
    ),
    Alert(
        "TxmsgBatchesSlow",
        _WARNING,
        "histogram_quantile(0.99, sum by (job, writer, le) (rate(txmsg_writer_batch_seconds_bucket[5m]))) > 1",
        "10m",
        "1 percent of the batches of writer {{ $labels.writer }} take over {{ $value | humanizeDuration }}",
        "Look at the disk of the Notify database, at locks, and for a standby that confirms late.",
    ),
    Alert(
        "TxmsgServerErrors",
        _WARNING,
        f'sum by (job, instance) (increase(txmsg_call_errors_total{{{ERROR}="internal"}}[10m])) > 0',
        "0m",
        "{{ $labels.instance }} failed unexpectedly in calls",
        "Its log has the traceback: report it.",
    ),
    Alert(
        "TxmsgDroppedUnread",
        _CRITICAL,
        "sum by (job) (increase(txmsg_unread_dropped_messages_total[1h])) > 0",
        "0m",
        "{{ $labels.job }} has dropped messages that a group had not read",
        "The log of the broker names the groups. Raise --retention-max, or set the topics to unread=keep.",
    ),
    Alert(
        "TxmsgSegmentsTooLarge",
        _WARNING,
        "max by (job) (txmsg_segments_bytes) > 1.25 * max by (job) (txmsg_retention_limit_bytes > 0)",
        "30m",
        "segments of {{ $labels.job }} have {{ $value | humanize1024 }}B, well above the limit of retention",
        "A group or a mirror has not read the oldest segment: the broker's log names it.",
    ),
    Alert(
        "TxmsgFiguresOld",
        _WARNING,
        "txmsg_database_figures_age_seconds > 600 or txmsg_log_figures_age_seconds > 600",
        "5m",
        "figures by topic and group of {{ $labels.instance }} are {{ $value | humanizeDuration }} old",
        "The database, or the log, does not answer in time: its alerts on groups see old values.",
    ),
    Alert(
        "TxmsgOpenFilesNear",
        _WARNING,
        "txmsg_process_open_files / txmsg_process_open_files_limit > 0.8",
        "5m",
        "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its file descriptors",
        "Raise LimitNOFILE, or spread the clients.",
    ),
    Alert(
        "TxmsgReleasesDiffer",
        _WARNING,
        "count by (job) (count by (job, service_version) (txmsg_build_info)) > 1",
        "1h",
        "processes of {{ $labels.job }} are of {{ $value }} releases",
        "Finish the upgrade.",
    ),
    Alert(
        "TxmsgNoMirror",
        _CRITICAL,
        "max by (job) (txmsg_mirror_tailing) == 0",
        "2m",
        "no tailer of {{ $labels.job }} mirrors",
        "The tailers' logs say what they wait for. Meanwhile the database keeps write-ahead log.",
    ),
    Alert(
        "TxmsgMirrorBehind",
        _WARNING,
        "max by (job) (txmsg_mirror_lag_seconds) > 60",
        "5m",
        "the mirror of {{ $labels.job }} is {{ $value | humanizeDuration }} behind",
        "Look at the disk of the log, and at `txmsg tailer status`.",
    ),
    Alert(
        "TxmsgMirrorStopped",
        _CRITICAL,
        "txmsg_mirror_stopped_queues > 0",
        "1m",
        "{{ $value }} queues of {{ $labels.job }} are mirrored no further",
        "`txmsg tailer status` says why.",
    ),
    Alert(
        "TxmsgMirrorIncomplete",
        _CRITICAL,
        "increase(txmsg_mirror_missing_messages_total[1h]) > 0",
        "0m",
        "messages of {{ $labels.job }} were dropped before they were mirrored",
        "The log has holes there. Keep a tailer running, or raise the retention.",
    ),
    Alert(
        "TxmsgSlotInDanger",
        _CRITICAL,
        "txmsg_mirror_safe_bytes < 1073741824",
        "1m",
        "the slot of the mirror of {{ $labels.job }} is lost after {{ $value | humanize1024 }}B more",
        "Get the tailer to catch up, or raise max_slot_wal_keep_size. A lost slot is refilled from the table.",
    ),
    Alert(
        "TxmsgLogFailed",
        _CRITICAL,
        "txmsg_log_failed == 1",
        "1m",
        "the log at {{ $labels.instance }} takes no appends",
        "/readyz and its log say why, such as a full disk.",
    ),
    Alert(
        "TxmsgLogSyncSlow",
        _WARNING,
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(txmsg_log_sync_seconds_bucket[5m]))) > 0.5",
        "10m",
        "1 percent of the syncs of the log at {{ $labels.instance }} take over {{ $value | humanizeDuration }}",
        "Look at its disk.",
    ),
    Alert(
        "TxmsgLogGroupBehind",
        _WARNING,
        f"max by ({_PAIR}) (txmsg_log_group_lag_seconds) > 300",
        "5m",
        f"{_OF_PAIR} of a log is {{{{ $value | humanizeDuration }}}} behind",
        "Is a member of it running (`txmsg group list --log`)? Then add members, or queues.",
    ),
    Alert(
        "TxmsgPageStale",
        _WARNING,
        "txmsg_page_figures_age_seconds > 60",
        "1m",
        "the page at {{ $labels.instance }} has had no figures for {{ $value | humanizeDuration }}",
        "Look at the job that computes them, and at its database.",
    ),
)
"""All of them, in the order of the page."""
