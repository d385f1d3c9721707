"""The alerts on these metrics: when each fires, how bad that is, and what an operator does then.

Brokers evaluate the conditions that they can see (txmsg/broker/alerts); Prometheus gets all of them:
deploy/prometheus/txmsg-rules.yml and tables of docs/metrics.md and docs/alerts.md are made from this. All processes of
one Notify database have one `job` in Prometheus, so that values of a database are not mixed with those of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from txmsg.metrics.catalogue import ERROR, GROUP, TOPIC
from txmsg.wire.tls import EXPIRES_SOON_S


class Severity(Enum):
    """How soon somebody must look."""

    CRITICAL = "critical"
    """Now: messages wait or are lost."""
    WARNING = "warning"
    """Within the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value is beyond a threshold."""

    metric: str
    threshold: float
    sign: str = ">"
    where: Mapping[str, str] = field(default_factory=dict)
    """Labels that its series must have."""
    by: tuple[str, ...] | None = None
    """The labels by which series are told apart, of which the greatest value counts; None: each series by itself."""

    @property
    def promql(self) -> str:
        """The same for Prometheus."""
        return f"{_aggregate('max', self.by, _selector(self.metric, self.where))} {self.sign} {self.threshold:.12g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A counter has risen within a time."""

    metric: str
    window_s: float
    where: Mapping[str, str] = field(default_factory=dict)
    by: tuple[str, ...] | None = None
    """The labels by which series are told apart, of which the sum counts; None: each series by itself."""
    threshold: float = 0.0

    @property
    def promql(self) -> str:
        """The same for Prometheus."""
        rise = f"increase({_selector(self.metric, self.where)}[{_duration(self.window_s)}])"
        return f"{_aggregate('sum', self.by, rise)} > {self.threshold:.12g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A value is a greater part of another one than a threshold. One of 0 means no limit."""

    metric: str
    of: str
    threshold: float
    by: tuple[str, ...] | None = None
    """As for a Level."""

    @property
    def promql(self) -> str:
        """The same for Prometheus."""
        whole = _aggregate("max", self.by, f"{self.of} > 0") if self.by else f"({self.of} > 0)"
        return f"{_aggregate('max', self.by, self.metric)} / {whole} > {self.threshold:.12g}"


@dataclass(frozen=True, slots=True)
class PromQL:
    """What only Prometheus can tell: it needs the values of several processes, or their history."""

    promql: str


Condition = Level | Rise | Share | PromQL


def _duration(seconds: float) -> str:
    """As Prometheus has it: 90s, 10m, 1h."""
    for unit, length_s in (("h", 3600), ("m", 60)):
        if seconds % length_s == 0 and (seconds or unit == "m"):
            return f"{seconds / length_s:.0f}{unit}"
    return f"{seconds:g}s"


def _selector(metric: str, where: Mapping[str, str]) -> str:
    labels = ", ".join(f'{label}="{value}"' for label, value in where.items())
    return f"{metric}{{{labels}}}" if labels else metric


def _aggregate(how: str, by: tuple[str, ...] | None, expr: str) -> str:
    return expr if by is None else f"{how} by ({', '.join(by)}) ({expr})"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    severity: Severity
    condition: Condition
    for_s: float
    """How long the condition must hold."""
    summary: str
    """What is wrong; `{{ }}` as Prometheus has it."""
    action: str
    """What to do."""

    @property
    def expr(self) -> str:
        """The condition in PromQL."""
        return self.condition.promql

    @property
    def for_(self) -> str:
        """For how long, as Prometheus has it."""
        return _duration(self.for_s)


_PAIR: Final = ("job", GROUP, TOPIC)
_JOB: Final = ("job",)
_OF_PAIR: Final = f"group {{{{ $labels.{GROUP} }}}} in topic {{{{ $labels.{TOPIC} }}}}"
_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING

ALERTS: Final = (
    Alert(
        "TxmsgProcessDown",
        _CRITICAL,
        PromQL('up{job=~"txmsg.*"} == 0'),
        60,
        "{{ $labels.instance }} of {{ $labels.job }} does not answer",
        "Look at its log and start it. Other brokers take over its queues; clients use those.",
    ),
    Alert(
        "TxmsgNotReady",
        _CRITICAL,
        PromQL("txmsg_ready == 0 unless on (job, instance) txmsg_draining == 1"),
        120,
        "{{ $labels.instance }} of {{ $labels.job }} is not ready",
        "Ask its /readyz why: the database, the log or the leases.",
    ),
    Alert(
        "TxmsgNobodyDelivers",
        _CRITICAL,
        PromQL("max by (job) (txmsg_lease_held) == 0"),
        60,
        "no broker of {{ $labels.job }} may deliver",
        "Look at the Notify database, which no broker's heartbeats reach.",
    ),
    Alert(
        "TxmsgBrokerDied",
        _WARNING,
        Level(metric="txmsg_brokers_dead", threshold=0, by=_JOB),
        60,
        "{{ $value }} brokers of {{ $labels.job }} have died, and none has taken their place",
        "`txmsg cluster show` names them: look at their logs, and start them again. `txmsg cluster forget` is for "
        "those that are not coming back; after a day all are forgotten.",
    ),
    Alert(
        "TxmsgDiskNearlyFull",
        _CRITICAL,
        Level(metric="txmsg_disk_free_ratio", threshold=0.1, sign="<"),
        300,
        "the disk of the data of {{ $labels.instance }} has {{ $value | humanizePercentage }} free",
        "Give it a larger disk, or keep less (retention). On a full disk nothing is stored: sends fail.",
    ),
    Alert(
        "TxmsgGroupBehind",
        _WARNING,
        Level(metric="txmsg_group_lag_seconds", threshold=300, by=_PAIR),
        300,
        f"{_OF_PAIR} is {{{{ $value | humanizeDuration }}}} behind",
        "Is a consumer of it running (`txmsg group show`)? Then give it more concurrency, or more processes.",
    ),
    Alert(
        "TxmsgGroupPaused",
        _WARNING,
        Level(metric="txmsg_delivery_paused_groups", threshold=0),
        300,
        "{{ $value }} groups get single messages from {{ $labels.instance }}, because all their handlers fail",
        "`txmsg group show` has the last error.",
    ),
    Alert(
        "TxmsgDeadLetters",
        _WARNING,
        Level(metric="txmsg_group_dead_letters", threshold=0, by=_PAIR),
        300,
        f"{_OF_PAIR} has {{{{ $value }}}} dead letters",
        "`txmsg dead-letter list` says why; redrive or purge them.",
    ),
    Alert(
        "TxmsgTransactionsInDoubt",
        _WARNING,
        Level(metric="txmsg_half_oldest_seconds", threshold=600, where={"state": "in_doubt"}, by=_JOB),
        300,
        "a transaction of {{ $labels.job }} is undecided for {{ $value | humanizeDuration }}, though it was checked",
        "Is a client of its producer group attached, and does its check listener answer (`txmsg half list`)?",
    ),
    Alert(
        "TxmsgTransactionsParked",
        _WARNING,
        Level(metric="txmsg_halves", threshold=0, where={"state": "parked"}, by=_JOB),
        300,
        "{{ $value }} transactions of {{ $labels.job }} are parked in doubt",
        "`txmsg half list --parked` shows them; decide them, or resume their checks.",
    ),
    Alert(
        "TxmsgBoundNear",
        _WARNING,
        Level(metric="txmsg_bound_used_ratio", threshold=0.8),
        300,
        "{{ $labels.bound }} of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
        "docs/limits.md says what happens at the bound. Add brokers, or find what is slow.",
    ),
    Alert(
        "TxmsgBatchesSlow",
        _WARNING,
        PromQL("histogram_quantile(0.99, sum by (job, writer, le) (rate(txmsg_writer_batch_seconds_bucket[5m]))) > 1"),
        600,
        "1 percent of the batches of writer {{ $labels.writer }} take over {{ $value | humanizeDuration }}",
        "Look at the disk of the Notify database, at locks, and for a standby that confirms late.",
    ),
    Alert(
        "TxmsgServerErrors",
        _WARNING,
        Rise(metric="txmsg_call_errors_total", window_s=600, where={ERROR: "internal"}, by=("job", "instance")),
        0,
        "{{ $labels.instance }} failed unexpectedly in calls",
        "Its log has the traceback: report it.",
    ),
    Alert(
        "TxmsgDroppedUnread",
        _CRITICAL,
        Rise(metric="txmsg_unread_dropped_messages_total", window_s=3600, by=_JOB),
        0,
        "{{ $labels.job }} has dropped messages that a group had not read",
        "The log of the broker names the groups. Raise --retention-max, or set the topics to unread=keep.",
    ),
    Alert(
        "TxmsgSegmentsTooLarge",
        _WARNING,
        Share(metric="txmsg_segments_bytes", of="txmsg_retention_limit_bytes", threshold=1.25, by=_JOB),
        1800,
        "segments of {{ $labels.job }} have {{ $value | humanizePercentage }} of the size limit of retention",
        "A group or a mirror has not read the oldest segment: the broker's log names it.",
    ),
    Alert(
        "TxmsgFiguresOld",
        _WARNING,
        PromQL("txmsg_database_figures_age_seconds > 600 or txmsg_log_figures_age_seconds > 600"),
        300,
        "figures by topic and group of {{ $labels.instance }} are {{ $value | humanizeDuration }} old",
        "The database, or the log, does not answer in time: its alerts on groups see old values.",
    ),
    Alert(
        "TxmsgOpenFilesNear",
        _WARNING,
        Share(metric="txmsg_process_open_files", of="txmsg_process_open_files_limit", threshold=0.8),
        300,
        "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its file descriptors",
        "Raise LimitNOFILE, or spread the clients.",
    ),
    Alert(
        "TxmsgReleasesDiffer",
        _WARNING,
        PromQL("count by (job) (count by (job, service_version) (txmsg_build_info)) > 1"),
        3600,
        "processes of {{ $labels.job }} are of {{ $value }} releases",
        "Finish the upgrade.",
    ),
    Alert(
        "TxmsgNoMirror",
        _CRITICAL,
        Level(metric="txmsg_mirror_tailing", sign="==", threshold=0, by=_JOB),
        120,
        "no tailer of {{ $labels.job }} mirrors",
        "The tailers' logs say what they wait for. Meanwhile the database keeps write-ahead log.",
    ),
    Alert(
        "TxmsgMirrorBehind",
        _WARNING,
        Level(metric="txmsg_mirror_lag_seconds", threshold=60, by=_JOB),
        300,
        "the mirror of {{ $labels.job }} is {{ $value | humanizeDuration }} behind",
        "Look at the disk of the log, and at `txmsg tailer status`.",
    ),
    Alert(
        "TxmsgMirrorStopped",
        _CRITICAL,
        Level(metric="txmsg_mirror_stopped_queues", threshold=0),
        60,
        "{{ $value }} queues of {{ $labels.job }} are no longer mirrored",
        "`txmsg tailer status` says why.",
    ),
    Alert(
        "TxmsgMirrorIncomplete",
        _CRITICAL,
        Rise(metric="txmsg_mirror_missing_messages_total", window_s=3600),
        0,
        "messages of {{ $labels.job }} were dropped before they were mirrored",
        "The log has holes there. Keep a tailer running, or raise the retention.",
    ),
    Alert(
        "TxmsgSlotInDanger",
        _CRITICAL,
        Level(metric="txmsg_mirror_safe_bytes", sign="<", threshold=1024**3),
        60,
        "the slot of the mirror of {{ $labels.job }} is lost after {{ $value | humanize1024 }}B more",
        "Get the tailer to catch up, or raise max_slot_wal_keep_size. A lost slot is refilled from the table.",
    ),
    Alert(
        "TxmsgLogFailed",
        _CRITICAL,
        Level(metric="txmsg_log_failed", sign="==", threshold=1),
        60,
        "the log at {{ $labels.instance }} takes no appends",
        "/readyz and its log say why, such as a full disk.",
    ),
    Alert(
        "TxmsgLogCopiesMissing",
        _CRITICAL,
        Level(metric="txmsg_log_copies_missing", threshold=0),
        60,
        "the log at {{ $labels.instance }} has {{ $value }} copies fewer than its appends wait for",
        "Start the copies that are away; `txmsg metaq status` lists those heard of lately.",
    ),
    Alert(
        "TxmsgLogCopyBehind",
        _WARNING,
        Level(metric="txmsg_log_follow_silent_seconds", threshold=60),
        60,
        "the copy {{ $labels.instance }} has heard nothing of its leader for {{ $value | humanizeDuration }}",
        "Is the leader there? The log of the copy says what it waits for.",
    ),
    Alert(
        "TxmsgLogSyncSlow",
        _WARNING,
        PromQL("histogram_quantile(0.99, sum by (job, instance, le) (rate(txmsg_log_sync_seconds_bucket[5m]))) > 0.5"),
        600,
        "1 percent of the syncs of the log at {{ $labels.instance }} take over {{ $value | humanizeDuration }}",
        "Look at its disk.",
    ),
    Alert(
        "TxmsgLogGroupBehind",
        _WARNING,
        Level(metric="txmsg_log_group_lag_seconds", threshold=300, by=_PAIR),
        300,
        f"{_OF_PAIR} of a log is {{{{ $value | humanizeDuration }}}} behind",
        "Is a member of it running (`txmsg group list --log`)? Then add members, or queues.",
    ),
    Alert(
        "TxmsgAgentHeld",
        _CRITICAL,
        Level(metric="txmsg_agent_held", threshold=0),
        60,
        "{{ $labels.instance }} reads nothing of its source {{ $labels.source }}",
        "`txmsg agent status` says why: its spool is full since the log is away, or the log refuses. Files must stay "
        "where they are until then.",
    ),
    Alert(
        "TxmsgAgentSpoolFills",
        _WARNING,
        Level(metric="txmsg_agent_spool_used_ratio", threshold=0.5),
        60,
        "the spool of {{ $labels.source }} at {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
        "The log is away, or slower than the lines come: `txmsg agent status` says which. A full one stops reading.",
    ),
    Alert(
        "TxmsgAgentBehind",
        _WARNING,
        PromQL("txmsg_agent_unread_bytes > 268435456 unless txmsg_agent_paused == 1"),
        600,
        "{{ $labels.instance }} has {{ $value | humanize1024 }}B of {{ $labels.source }} yet to read",
        "Raise lines_per_s if it is limited, or divide the paths among several sources: each has a thread of its own.",
    ),
    Alert(
        "TxmsgAgentLostLines",
        _CRITICAL,
        Rise(metric="txmsg_agent_lost_bytes_total", window_s=3600),
        0,
        "{{ $value | humanize1024 }}B of {{ $labels.source }} at {{ $labels.instance }} were gone before being read",
        "They are lost. Rotate later or keep more files; `create` loses nothing where `copytruncate` does.",
    ),
    Alert(
        "TxmsgOutboxWaits",
        _WARNING,
        Level(metric="txmsg_client_outbox_oldest_seconds", threshold=300, by=("job", "instance")),
        60,
        "a transaction waits in the outbox of {{ $labels.instance }} for {{ $value | humanizeDuration }}",
        "Do brokers answer? The service's log says why its outbox is not relayed, and `txmsg outbox list` what waits.",
    ),
    Alert(
        "TxmsgOutboxRefused",
        _WARNING,
        Level(metric="txmsg_client_outbox_refused_rows", threshold=0, by=("job", "instance")),
        300,
        "brokers refuse {{ $value }} transactions in the outbox of {{ $labels.instance }}",
        "`txmsg outbox list` says why, such as a topic that is unknown. They are tried again every minute.",
    ),
    Alert(
        "TxmsgCertificateExpires",
        _WARNING,
        Level(metric="txmsg_tls_certificate_remaining_seconds", threshold=EXPIRES_SOON_S, sign="<"),
        300,
        "the certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "Renew it: the process reads the file again by itself. Clients refuse one that has expired.",
    ),
    Alert(
        "TxmsgPageStale",
        _WARNING,
        Level(metric="txmsg_page_figures_age_seconds", threshold=60),
        60,
        "the page at {{ $labels.instance }} has had no figures for {{ $value | humanizeDuration }}",
        "Look at the job that computes them, and at its database.",
    ),
)
"""All of them, in the order of the page."""


def threshold_of(name: str) -> float:
    """The threshold of a rule that has one: `txmsg doctor` warns of the same."""
    [condition] = [alert.condition for alert in ALERTS if alert.name == name]
    assert not isinstance(condition, PromQL)
    return condition.threshold
