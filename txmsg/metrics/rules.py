"""The alerts on these metrics: when each fires, how bad that is, and what an operator does then.

Brokers evaluate the conditions that they can see (txmsg/broker/alerts); Prometheus gets all of them:
deploy/prometheus/txmsg-rules.yml and tables of docs/metrics.md and docs/alerts.md are made from this. All processes of
one Notify database have one `job` in Prometheus, so that values of a database are not mixed with those of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from txmsg.metrics.catalogue import ERROR, GROUP, TOPIC
from txmsg.wire.tls import EXPIRES_SOON_S


class Severity(StrEnum):
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
        "Check its log and start it. Other brokers take over its queues, and clients use them.",
    ),
    Alert(
        "TxmsgNotReady",
        _CRITICAL,
        PromQL("txmsg_ready == 0 unless on (job, instance) txmsg_draining == 1"),
        120,
        "{{ $labels.instance }} of {{ $labels.job }} is not ready",
        "Request its /readyz, which gives the reason: the database, the log or the leases.",
    ),
    Alert(
        "TxmsgNobodyDelivers",
        _CRITICAL,
        PromQL("max by (job) (txmsg_lease_held) == 0"),
        60,
        "no broker of {{ $labels.job }} may deliver",
        "Check the Notify database: heartbeats of brokers do not reach it.",
    ),
    Alert(
        "TxmsgBrokerDied",
        _WARNING,
        Level(metric="txmsg_brokers_dead", threshold=0, by=_JOB),
        60,
        "{{ $value }} brokers of {{ $labels.job }} have died and are not replaced",
        "`txmsg cluster show` names them: check their logs, and restart them. Use `txmsg cluster forget` for brokers "
        "that will not come back; after a day all are forgotten.",
    ),
    Alert(
        "TxmsgDiskNearlyFull",
        _CRITICAL,
        Level(metric="txmsg_disk_free_ratio", threshold=0.1, sign="<"),
        300,
        "the disk of the data of {{ $labels.instance }} has {{ $value | humanizePercentage }} free",
        "Enlarge the disk, or reduce the retention. On a full disk sends fail.",
    ),
    Alert(
        "TxmsgGroupBehind",
        _WARNING,
        Level(metric="txmsg_group_lag_seconds", threshold=300, by=_PAIR),
        300,
        f"{_OF_PAIR} is {{{{ $value | humanizeDuration }}}} behind",
        "Check that a consumer of the group is running (`txmsg group show`). If so, raise its concurrency, or add "
        "processes.",
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
        "`txmsg dead-letter list` shows the errors; redrive or purge the dead letters.",
    ),
    Alert(
        "TxmsgTransactionsInDoubt",
        _WARNING,
        Level(metric="txmsg_half_oldest_seconds", threshold=600, where={"state": "in_doubt"}, by=_JOB),
        300,
        "a transaction of {{ $labels.job }} has been undecided for {{ $value | humanizeDuration }} although it is "
        "checked",
        "Check that a client of its producer group is attached, and that its check listener answers (`txmsg half "
        "list`).",
    ),
    Alert(
        "TxmsgChecksOverdue",
        _WARNING,
        Level(metric="txmsg_half_overdue_seconds", threshold=120, by=_JOB),
        60,
        "the check of a transaction of {{ $labels.job }} has been due for {{ $value | humanizeDuration }}, and nothing "
        "checks it",
        "Start a client of its producer group: `txmsg half list` names the group, and says if no client can answer. "
        "Meanwhile its messages wait, undecided.",
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
        "docs/limits.md describes the behaviour at the bound. Add brokers, or find the bottleneck.",
    ),
    Alert(
        "TxmsgBatchesSlow",
        _WARNING,
        PromQL("histogram_quantile(0.99, sum by (job, writer, le) (rate(txmsg_writer_batch_seconds_bucket[5m]))) > 1"),
        600,
        "1 percent of the batches of writer {{ $labels.writer }} take over {{ $value | humanizeDuration }}",
        "Check the disk of the Notify database, locks, and whether a standby confirms late.",
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
        "The database or the log does not answer in time: alerts on groups use old values.",
    ),
    Alert(
        "TxmsgOpenFilesNear",
        _WARNING,
        Share(metric="txmsg_process_open_files", of="txmsg_process_open_files_limit", threshold=0.8),
        300,
        "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of its file descriptors",
        "Raise LimitNOFILE, or distribute the clients over more processes.",
    ),
    Alert(
        "TxmsgReleasesDiffer",
        _WARNING,
        PromQL("count by (job) (count by (job, service_version) (txmsg_build_info)) > 1"),
        3600,
        "processes of {{ $labels.job }} have {{ $value }} different releases",
        "Finish the upgrade.",
    ),
    Alert(
        "TxmsgNoMirror",
        _CRITICAL,
        Level(metric="txmsg_mirror_tailing", sign="==", threshold=0, by=_JOB),
        120,
        "no tailer of {{ $labels.job }} mirrors",
        "The tailers' logs give the reason. Meanwhile the database keeps write-ahead log.",
    ),
    Alert(
        "TxmsgMirrorBehind",
        _WARNING,
        Level(metric="txmsg_mirror_lag_seconds", threshold=60, by=_JOB),
        300,
        "the mirror of {{ $labels.job }} is {{ $value | humanizeDuration }} behind",
        "Check the disk of the log, and `txmsg tailer status`.",
    ),
    Alert(
        "TxmsgMirrorStopped",
        _CRITICAL,
        Level(metric="txmsg_mirror_stopped_queues", threshold=0),
        60,
        "{{ $value }} queues of {{ $labels.job }} are no longer mirrored",
        "`txmsg tailer status` shows the reason.",
    ),
    Alert(
        "TxmsgMirrorIncomplete",
        _CRITICAL,
        Rise(metric="txmsg_mirror_missing_messages_total", window_s=3600),
        0,
        "messages of {{ $labels.job }} were dropped before they were mirrored",
        "The log has holes at their offsets. Keep a tailer running, or raise the retention.",
    ),
    Alert(
        "TxmsgSlotInDanger",
        _CRITICAL,
        Level(metric="txmsg_mirror_safe_bytes", sign="<", threshold=1024**3),
        60,
        "the slot of the mirror of {{ $labels.job }} is lost after {{ $value | humanize1024 }}B more",
        "Let the tailer catch up, or raise max_slot_wal_keep_size. If the slot is lost, the mirror is refilled from "
        "the table.",
    ),
    Alert(
        "TxmsgSlotKeepsLog",
        _WARNING,
        Level(metric="txmsg_slot_kept_bytes", threshold=10 * 1024**3, by=_JOB),
        300,
        "a replication slot of {{ $labels.job }} keeps {{ $value | humanize1024 }}B of write-ahead log",
        "`txmsg doctor --storage` names it. Start its tailer or standby, or drop it if it is not wanted any more; set "
        "max_slot_wal_keep_size, so that it cannot fill the disk.",
    ),
    Alert(
        "TxmsgLogFailed",
        _CRITICAL,
        Level(metric="txmsg_log_failed", sign="==", threshold=1),
        60,
        "the log at {{ $labels.instance }} accepts no appends",
        "/readyz and its log give the reason, such as a full disk.",
    ),
    Alert(
        "TxmsgLogCopiesMissing",
        _CRITICAL,
        Level(metric="txmsg_log_copies_missing", threshold=0),
        60,
        "the log at {{ $labels.instance }} has {{ $value }} copies fewer than its appends wait for",
        "Start the missing copies; `txmsg metaq status` lists the copies that reported recently.",
    ),
    Alert(
        "TxmsgLogCopyBehind",
        _WARNING,
        Level(metric="txmsg_log_follow_silent_seconds", threshold=60),
        60,
        "the leader of the copy {{ $labels.instance }} has not answered for {{ $value | humanizeDuration }}",
        "Check that the leader runs. The log of the copy gives the reason for waiting.",
    ),
    Alert(
        "TxmsgLogSyncSlow",
        _WARNING,
        PromQL("histogram_quantile(0.99, sum by (job, instance, le) (rate(txmsg_log_sync_seconds_bucket[5m]))) > 0.5"),
        600,
        "1 percent of the syncs of the log at {{ $labels.instance }} take over {{ $value | humanizeDuration }}",
        "Check its disk.",
    ),
    Alert(
        "TxmsgLogGroupBehind",
        _WARNING,
        Level(metric="txmsg_log_group_lag_seconds", threshold=300, by=_PAIR),
        300,
        f"{_OF_PAIR} of a log is {{{{ $value | humanizeDuration }}}} behind",
        "Check that a member of the group is running (`txmsg group list --log`). If so, add members, or queues.",
    ),
    Alert(
        "TxmsgAgentHeld",
        _CRITICAL,
        Level(metric="txmsg_agent_held", threshold=0),
        60,
        "{{ $labels.instance }} reads nothing of its source {{ $labels.source }}",
        "`txmsg agent status` shows the reason, and what to do: the spool is full because the log is unavailable, or "
        "damaged; the log refuses appends; or a mount does not answer. Do not remove the files until this is fixed.",
    ),
    Alert(
        "TxmsgAgentUnreadable",
        _CRITICAL,
        Level(metric="txmsg_agent_unreadable_files", threshold=0),
        60,
        "{{ $labels.instance }} cannot read {{ $value }} files of its source {{ $labels.source }}",
        "`txmsg agent status` names them. Give the agent's user permission, or check the disk or the mount; they are "
        "tried again every 30 s. To go on without the rest of a file, delete it.",
    ),
    Alert(
        "TxmsgAgentSpoolFills",
        _WARNING,
        Level(metric="txmsg_agent_spool_used_ratio", threshold=0.5),
        60,
        "the spool of {{ $labels.source }} at {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
        "The log is unavailable, or slower than the files grow: `txmsg agent status` shows the reason. A full spool "
        "stops reading.",
    ),
    Alert(
        "TxmsgAgentBehind",
        _WARNING,
        PromQL("txmsg_agent_unread_bytes > 268435456 unless txmsg_agent_paused == 1"),
        600,
        "{{ $labels.instance }} has {{ $value | humanize1024 }}B of {{ $labels.source }} left to read",
        "Raise lines_per_s if it is limited, or divide the paths among several sources: each has its own thread.",
    ),
    Alert(
        "TxmsgAgentLostLines",
        _CRITICAL,
        Rise(metric="txmsg_agent_lost_bytes_total", window_s=3600),
        0,
        "{{ $value | humanize1024 }}B of {{ $labels.source }} at {{ $labels.instance }} were lost before they were "
        "read",
        "These lines are lost. Rotate later, or keep more files; use `create` instead of `copytruncate`, which can "
        "lose lines.",
    ),
    Alert(
        "TxmsgOutboxWaits",
        _WARNING,
        Level(metric="txmsg_client_outbox_oldest_seconds", threshold=300, by=("job", "instance")),
        60,
        "a transaction waits in the outbox of {{ $labels.instance }} for {{ $value | humanizeDuration }}",
        "Check that brokers answer. The service's log says why its outbox is not relayed; `txmsg outbox list` lists "
        "its messages.",
    ),
    Alert(
        "TxmsgOutboxRefused",
        _WARNING,
        Level(metric="txmsg_client_outbox_refused_rows", threshold=0, by=("job", "instance")),
        300,
        "brokers refuse {{ $value }} transactions in the outbox of {{ $labels.instance }}",
        "`txmsg outbox list` shows the reason, such as an unknown topic. They are retried every minute.",
    ),
    Alert(
        "TxmsgCertificateExpires",
        _WARNING,
        Level(metric="txmsg_tls_certificate_remaining_seconds", threshold=EXPIRES_SOON_S, sign="<"),
        300,
        "the certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "Renew it: the process reloads the file by itself. Clients refuse an expired certificate.",
    ),
    Alert(
        "TxmsgPageStale",
        _WARNING,
        Level(metric="txmsg_page_figures_age_seconds", threshold=60),
        60,
        "the page at {{ $labels.instance }} has had no figures for {{ $value | humanizeDuration }}",
        "Check the job that computes the figures, and its database.",
    ),
)
"""All of them, in the order of the page."""


def threshold_of(name: str) -> float:
    """The threshold of a rule that has one: `txmsg doctor` warns of the same."""
    [condition] = [alert.condition for alert in ALERTS if alert.name == name]
    assert not isinstance(condition, PromQL)
    return condition.threshold
