"""Every metric that a process of txmsg exports: its name, type, unit, labels and meaning, and which processes have it.

Scraped figures, docs/metrics.md, the alert rules and the dashboard are made from this table. Knows no process and no
library. Labels follow OpenTelemetry's conventions for messaging where those have a word, with `_` for `.`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class MetricKind(Enum):
    """The types of Prometheus that are used."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class ExportingProcess(Enum):
    """The kinds of processes that export metrics."""

    BROKER = "broker"
    METAQ = "metaq"
    TAILER = "tailer"
    AGENT = "agent"
    ROCKETMQ = "rocketmq"
    PAGE = "page"
    APPLICATION = "application"
    WORKER = "worker"


class Scope(Enum):
    """The subject of a value, which decides how values of several processes are combined."""

    PROCESS = "process"
    """The process: add them up."""
    DATABASE = "database"
    """The Notify database, the same from each of its brokers: take the maximum."""


NAMED_MAX: Final = 500
"""Topics, and pairs of a group and a topic, with series of their own. The others are OTHER.

Of topics, and for counters, they are always the same: in a database those created first, in a log the first by name.
For other metrics of pairs they are the pairs that wait longest, or have most retries or dead letters."""
OTHER: Final = "(other)"
"""The label of the others together: not a valid name of a topic or group."""

TOPIC: Final = "messaging_destination_name"
GROUP: Final = "messaging_consumer_group_name"
ERROR: Final = "error_type"
OPERATION: Final = "messaging_operation_name"
METHOD: Final = "rpc_method"

LABELS: Final = {
    TOPIC: f"A topic: the {NAMED_MAX} created first (in a log: the first by name); the others together are `{OTHER}`.",
    GROUP: f"A consumer group: {NAMED_MAX} pairs with a topic; the others together are `{OTHER}`. They are the pairs "
    "that wait longest or have most retries or dead letters; for a counter, whose series must not come and go, those "
    "created first.",
    ERROR: "The code of an error class, as it goes over the wire: one of about 25. At gateways one of RocketMQ, like "
    "`TOPIC_NOT_FOUND`, or of gRPC, like `grpc.DEADLINE_EXCEEDED`. Of handlers the name of the exception's class: 20 "
    f"of each handler; the others together are `{OTHER}`.",
    OPERATION: "`send`, `half` or `outcome`.",
    METHOD: "A method of RocketMQ's clients, such as `SendMessage`: one of ten.",
    "bound": "The bounded resource; see below.",
    "decided_by": "`client`, `check` or `person`.",
    "kind": "`half` or `plain`.",
    "outcome": "`commit`, `rollback` or `unknown`.",
    "pool": "`delivery` (check-backs, too) or `administration`.",
    "process": "`broker`, `metaq`, `tailer`, `agent`, `rocketmq`, `page` or `worker`.",
    "reason": "`erased` by an operator; `expired`: the key's retention has passed; `damaged`.",
    "service_version": "The release of txmsg.",
    "source": "A source in an agent's file.",
    "state": "`new`: not checked yet; `in_doubt`: checked and still undecided; `parked`: no longer checked.",
    "writer": "`half`, `other` (outcomes and plain messages) or `replicated`.",
}
"""The values of each label, which are bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """An entry of the catalogue."""

    name: str
    kind: MetricKind
    unit: str
    """The unit of its values: seconds, bytes, messages ...; `1` for a share, and for a value of 0 or 1."""
    meaning: str
    """The meaning; also the HELP line."""
    labels: tuple[str, ...] = ()
    scope: Scope = Scope.PROCESS
    section: str = ""
    """The heading on the page, and the row of the dashboard."""
    processes: frozenset[ExportingProcess] = frozenset()


def _counter(name: str, unit: str, meaning: str, *labels: str, scope: Scope = Scope.PROCESS) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, unit=unit, meaning=meaning, labels=labels, scope=scope)


def _gauge(name: str, unit: str, meaning: str, *labels: str, scope: Scope = Scope.PROCESS) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, unit=unit, meaning=meaning, labels=labels, scope=scope)


def _histogram(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.HISTOGRAM, unit=unit, meaning=meaning, labels=labels)


_PROCESS: Final = (
    _gauge("txmsg_build_info", "1", "The release, as a label; always 1.", "service_version", "process"),
    _gauge("txmsg_ready", "1", "Whether /readyz returns 200."),
    _gauge("txmsg_process_start_time_seconds", "seconds", "When the process started, since 1970."),
    _counter("txmsg_process_cpu_seconds_total", "seconds", "CPU time used, of user and system."),
    _gauge("txmsg_process_resident_bytes", "bytes", "Memory in use (RSS)."),
    _gauge("txmsg_process_open_files", "files", "File descriptors in use."),
    _gauge("txmsg_process_open_files_limit", "files", "File descriptors that the process may use."),
    _gauge("txmsg_tls_certificate_remaining_seconds", "seconds", "Time until the certificate expires. Only with TLS."),
)
_CALLS: Final = (
    _gauge("txmsg_connections", "connections", "Clients connected."),
    _gauge("txmsg_calls_in_flight", "calls", "Calls in progress, including long polls."),
    _counter("txmsg_calls_total", "calls", "Calls started."),
    _counter("txmsg_call_errors_total", "calls", "Calls answered with an error.", ERROR),
    _counter("txmsg_network_received_bytes_total", "bytes", "Bytes received from clients."),
    _counter("txmsg_network_sent_bytes_total", "bytes", "Bytes sent to clients."),
    _gauge(
        "txmsg_bound_used_ratio",
        "1",
        "Used share of a bounded resource; at 1, further requests wait or are refused.",
        "bound",
    ),
)
_DISK: Final = (
    _gauge(
        "txmsg_disk_free_ratio",
        "1",
        "Free share of the disk: of a log, or of the Notify database. The latter only where that is on the broker's "
        "machine and its role may know (pg_read_all_settings).",
    ),
)
_SENDING: Final = (
    _counter("txmsg_stored_messages_total", "messages", "Messages stored for clients, including repeats.", "kind"),
    _counter(
        "txmsg_outcomes_total",
        "transactions",
        "Outcomes received, including repeats. After `unknown` the transaction is checked.",
        "outcome",
        "decided_by",
    ),
    _counter("txmsg_item_errors_total", "transactions", "Transactions refused in requests that were answered.", ERROR),
    _histogram("txmsg_writer_batch_items", "items", "Messages and outcomes per batch.", "writer"),
    _histogram(
        "txmsg_writer_batch_seconds", "seconds", "Time that the database took for a batch, including repeats.", "writer"
    ),
    _counter("txmsg_writer_repeats_total", "attempts", "Failed attempts to write a batch.", "writer"),
    _gauge("txmsg_writer_waiting_items", "items", "Messages and outcomes that wait for a batch.", "writer"),
    _gauge("txmsg_writer_waiting_bytes", "bytes", "Bytes that wait for a batch.", "writer"),
    _gauge("txmsg_topics", "topics", f"Topics; those beyond {NAMED_MAX} are in `{OTHER}`.", scope=Scope.DATABASE),
    _counter(
        "txmsg_topic_messages_total",
        "messages",
        "Messages that have entered the queues of a topic since it was created.",
        TOPIC,
        scope=Scope.DATABASE,
    ),
    _counter(
        "txmsg_scheduled_released_total", "messages", "Delayed messages that became due and entered their queues."
    ),
)
_CHECKS: Final = (
    _gauge("txmsg_halves", "transactions", "Undecided transactions.", "state", scope=Scope.DATABASE),
    _gauge(
        "txmsg_half_oldest_seconds",
        "seconds",
        "Age of the oldest undecided transaction; 0 without one.",
        "state",
        scope=Scope.DATABASE,
    ),
    _gauge(
        "txmsg_half_overdue_seconds",
        "seconds",
        "Time for which the check of a transaction has been due, the longest; 0 if none is due. It grows while no "
        "client of its producer group can answer.",
        scope=Scope.DATABASE,
    ),
    _counter("txmsg_checks_total", "checks", "Check-backs started."),
    _counter(
        "txmsg_check_answers_total", "checks", "Results of check-backs; no answer in time counts as unknown.", "outcome"
    ),
    _counter("txmsg_halves_parked_total", "transactions", "Transactions parked in doubt, for an operator."),
    _gauge("txmsg_checks_in_flight", "checks", "Check-backs in progress."),
    _gauge("txmsg_attached_clients", "clients", "Attached clients, which receive the list of brokers and check-backs."),
)
_DELIVERY: Final = (
    _counter("txmsg_delivered_messages_total", "messages", "Messages delivered to consumers, including redeliveries."),
    _counter("txmsg_acknowledged_messages_total", "messages", "Messages acknowledged in time."),
    _counter("txmsg_refused_messages_total", "messages", "Messages refused in time: their handlers failed."),
    _counter("txmsg_expired_messages_total", "messages", "Messages not settled within their visibility timeout."),
    _counter("txmsg_late_messages_total", "messages", "Settlements that came too late and were ignored."),
    _counter("txmsg_retries_total", "messages", "Failed messages stored for another attempt."),
    _counter("txmsg_dead_letters_total", "messages", "Messages that failed for the last time."),
    _counter(
        "txmsg_unreadable_messages_total",
        "messages",
        "Messages of erasable topics that were not delivered. Only damaged ones are retried.",
        "reason",
    ),
    _gauge("txmsg_delivery_groups", "groups", "Groups in memory."),
    _gauge("txmsg_delivery_paused_groups", "groups", "Groups that get single messages because all messages fail."),
    _gauge("txmsg_delivery_waiting_receives", "calls", "Receives that wait for messages."),
    _gauge("txmsg_delivery_in_flight_messages", "messages", "Messages delivered and not settled, without retries."),
    _gauge("txmsg_delivery_memory_bytes", "bytes", "Memory of messages held ready."),
    _counter(
        "txmsg_journal_entries_total",
        "entries",
        "Entries written to the journals of topics; one entry covers consecutive messages.",
    ),
    _counter("txmsg_journal_lost_entries_total", "entries", "Journal entries that could not be written."),
)
_GROUPS: Final = (
    _gauge("txmsg_groups", "groups", "Consumer groups.", scope=Scope.DATABASE),
    _gauge(
        "txmsg_group_pairs",
        "pairs",
        f"Pairs of a group and a topic that it reads; those beyond {NAMED_MAX} are in `{OTHER}`.",
        scope=Scope.DATABASE,
    ),
    _counter(
        "txmsg_group_processed_messages_total",
        "messages",
        "Messages that a group has processed, by its cursors; decreases after a seek back.",
        GROUP,
        TOPIC,
        scope=Scope.DATABASE,
    ),
    _gauge(
        "txmsg_group_lag_messages",
        "messages",
        "Messages that a group has not processed, without retries and dead letters.",
        GROUP,
        TOPIC,
        scope=Scope.DATABASE,
    ),
    _gauge(
        "txmsg_group_lag_seconds",
        "seconds",
        f"Age of the oldest of these messages; 0 if there is none. For `{OTHER}` the greatest.",
        GROUP,
        TOPIC,
        scope=Scope.DATABASE,
    ),
    _gauge(
        "txmsg_group_retrying_messages",
        "messages",
        "Messages that wait for another attempt.",
        GROUP,
        TOPIC,
        scope=Scope.DATABASE,
    ),
    _gauge(
        "txmsg_group_dead_letters", "messages", "Dead letters, for an operator.", GROUP, TOPIC, scope=Scope.DATABASE
    ),
)
_STORAGE: Final = (
    _gauge("txmsg_segments", "segments", "Segments kept.", scope=Scope.DATABASE),
    _gauge("txmsg_segments_bytes", "bytes", "Size of all segments, with indexes.", scope=Scope.DATABASE),
    _gauge(
        "txmsg_segment_oldest_seconds",
        "seconds",
        "Time since the oldest segment was closed; 0 if none is closed.",
        scope=Scope.DATABASE,
    ),
    _gauge("txmsg_retention_seconds", "seconds", "Time for which segments that every group has read are kept."),
    _gauge(
        "txmsg_retention_limit_bytes", "bytes", "Size of all segments above which the oldest are dropped; 0: no limit."
    ),
    _counter("txmsg_segments_dropped_total", "segments", "Segments dropped by this broker."),
    _counter(
        "txmsg_unread_dropped_messages_total", "messages", "Messages dropped unread, counted once for each group."
    ),
)
_DATABASE: Final = (
    _gauge("txmsg_database_reachable", "1", "Whether the last heartbeat reached the Notify database."),
    _gauge("txmsg_lease_held", "1", "Whether this broker may deliver."),
    _gauge("txmsg_leases", "queues", "Queues that this broker delivers."),
    _counter("txmsg_lease_losses_total", "losses", "Number of times that all leases were lost."),
    _gauge("txmsg_brokers", "brokers", "Brokers that this broker considers alive, including itself."),
    _gauge(
        "txmsg_brokers_dead",
        "brokers",
        "Brokers that died within the last day and were not replaced, by a broker at the same address or by a new one.",
        scope=Scope.DATABASE,
    ),
    _gauge(
        "txmsg_slot_kept_bytes",
        "bytes",
        "Bytes of write-ahead log that the replication slot which keeps most of it keeps, of a mirror or a standby; 0 "
        "without one.",
        scope=Scope.DATABASE,
    ),
    _gauge("txmsg_draining", "1", "Whether this broker is draining."),
    _gauge("txmsg_database_sessions", "sessions", "Sessions in a pool.", "pool"),
    _gauge("txmsg_database_waiting", "requests", "Requests that wait for a session of a pool.", "pool"),
    _counter("txmsg_database_requests_total", "requests", "Requests for a session of a pool.", "pool"),
    _counter("txmsg_database_used_seconds_total", "seconds", "Time for which sessions of a pool were in use.", "pool"),
    _counter("txmsg_database_wait_seconds_total", "seconds", "Time that requests waited for a session.", "pool"),
    _counter(
        "txmsg_database_errors_total",
        "errors",
        "Sessions that were not available in time, could not be opened, or were lost.",
        "pool",
    ),
    _gauge(
        "txmsg_database_figures_age_seconds",
        "seconds",
        "Age of the values of scope `database`; before the first, time since the start.",
    ),
    _gauge("txmsg_database_figures_seconds", "seconds", "Time that the query for these values took."),
)
_LOG: Final = (
    _gauge("txmsg_log_bytes", "bytes", "Size of the files of messages."),
    _gauge("txmsg_log_files", "files", "Files of messages."),
    _gauge("txmsg_log_unsynced_bytes", "bytes", "Appended bytes that are not known to be on disk."),
    _histogram("txmsg_log_sync_seconds", "seconds", "Time to sync appended bytes to disk."),
    _histogram(
        "txmsg_log_append_seconds",
        "seconds",
        "Time to append the calls that waited together, including the sync if requested.",
    ),
    _histogram("txmsg_log_append_calls", "calls", "Calls that were appended together."),
    _counter(
        "txmsg_log_appended_messages_total",
        "messages",
        "Messages appended, including retries and dead letters of groups.",
    ),
    _counter("txmsg_log_appended_bytes_total", "bytes", "Bytes of these messages, as stored."),
    _counter("txmsg_log_append_errors_total", "calls", "Calls that failed and appended nothing."),
    _gauge(
        "txmsg_log_failed", "1", "Whether the last append failed because of the log itself, for example a full disk."
    ),
    _gauge("txmsg_log_delayed_messages", "messages", "Delayed messages that wait in the log."),
    _gauge(
        "txmsg_log_delayed_late_seconds", "seconds", "Time since the first of these messages was due; 0 if none is due."
    ),
    _gauge("txmsg_log_copies", "copies", "Connected copies of the log on other machines."),
    _gauge("txmsg_log_copies_missing", "copies", "Number of copies that appends require and that are not connected."),
    _gauge(
        "txmsg_log_copy_lag_bytes",
        "bytes",
        "Bytes on this disk that the copy furthest behind does not have on its disk.",
    ),
    _counter("txmsg_log_copy_timeouts_total", "calls", "Appends that were not confirmed by enough copies in time."),
    _gauge(
        "txmsg_log_follow_lag_bytes",
        "bytes",
        "Of a copy: bytes on the leader's disk that the copy does not have; else 0.",
    ),
    _gauge(
        "txmsg_log_follow_silent_seconds",
        "seconds",
        "Of a copy: time since the leader's last answer or, before the first, since the start; else 0.",
    ),
    _counter("txmsg_log_deleted_files_total", "files", "Files of messages that retention has deleted."),
    _gauge("txmsg_log_retention_limit_bytes", "bytes", "Size above which the oldest files are deleted; 0: no limit."),
    _gauge("txmsg_log_waiting_fetches", "calls", "Fetches that wait for messages."),
    _gauge("txmsg_log_members", "members", "Members of groups that are clients of this server."),
    _gauge("txmsg_log_groups", "groups", "Groups."),
    _gauge(
        "txmsg_log_group_pairs",
        "pairs",
        f"Pairs of a group and a topic that it reads; those beyond {NAMED_MAX} are in `{OTHER}`.",
    ),
    _gauge("txmsg_log_topics", "topics", "Topics."),
    _counter("txmsg_log_topic_messages_total", "messages", "Messages ever appended to a topic.", TOPIC),
    _gauge("txmsg_log_group_lag_messages", "messages", "Messages beyond the stored offsets of a group.", GROUP, TOPIC),
    _gauge(
        "txmsg_log_group_lag_seconds",
        "seconds",
        f"Maximum age of the oldest of these messages; 0 if there is none. For `{OTHER}` the greatest.",
        GROUP,
        TOPIC,
    ),
    _gauge(
        "txmsg_log_figures_age_seconds",
        "seconds",
        "Age of the values of files, topics and groups; before the first, time since the start.",
    ),
)
_MIRROR: Final = (
    _gauge(
        "txmsg_mirror_tailing",
        "1",
        "Whether this tailer mirrors; 0: it is starting, another one mirrors, or its database or log is away.",
    ),
    _gauge(
        "txmsg_mirror_lag_seconds",
        "seconds",
        "Time since the commit of the last mirrored transaction, while there are later ones; while that is not known, "
        "time since it was. No series while another tailer mirrors.",
    ),
    _gauge(
        "txmsg_mirror_lag_bytes",
        "bytes",
        "Bytes of write-ahead log that are not confirmed as mirrored; no series while the database is away.",
    ),
    _gauge(
        "txmsg_mirror_lag_messages",
        "messages",
        "Messages in the table that were not in the log at the last check; no series while it does not mirror.",
    ),
    _gauge("txmsg_mirror_kept_bytes", "bytes", "Bytes of write-ahead log that the database keeps for the mirror."),
    _gauge(
        "txmsg_mirror_safe_bytes",
        "bytes",
        "Bytes that can be written before the slot is lost; no series if the slot has no limit.",
    ),
    _gauge("txmsg_mirror_stopped_queues", "queues", "Queues that are no longer mirrored, until an operator acts."),
    _counter("txmsg_mirror_messages_total", "messages", "Messages appended to the log."),
    _counter("txmsg_mirror_refilled_messages_total", "messages", "Of these, messages read from the table."),
    _counter("txmsg_mirror_repeated_messages_total", "messages", "Messages that were received again and skipped."),
    _counter("txmsg_mirror_missing_messages_total", "messages", "Messages dropped before they were mirrored."),
    _counter("txmsg_mirror_foreign_changes_total", "changes", "Changes in the publication that are not messages."),
    _histogram("txmsg_mirror_append_seconds", "seconds", "Time of an append, including the sync."),
)
_AGENT: Final = (
    _counter("txmsg_agent_lines_total", "lines", "Records written to the log or the spool.", "source"),
    _counter("txmsg_agent_read_bytes_total", "bytes", "Bytes of these records in their files.", "source"),
    _gauge("txmsg_agent_files", "files", "Open files.", "source"),
    _gauge("txmsg_agent_unread_bytes", "bytes", "Unread bytes of the open files.", "source"),
    _gauge("txmsg_agent_spool_bytes", "bytes", "Bytes in the spool that are not in the log yet.", "source"),
    _gauge("txmsg_agent_spool_used_ratio", "1", "Used share of the spool; near 1, reading stops.", "source"),
    _gauge(
        "txmsg_agent_held",
        "1",
        "Whether reading is blocked: the spool is full or damaged, the log refuses appends, or a mount hangs.",
        "source",
    ),
    _gauge(
        "txmsg_agent_unreadable_files",
        "files",
        "Files and directories that cannot be read now; they are tried again, and others are read meanwhile.",
        "source",
    ),
    _gauge("txmsg_agent_paused", "1", "Whether reading is paused by a setting.", "source"),
    _counter("txmsg_agent_truncations_total", "files", "Files that were truncated.", "source"),
    _counter(
        "txmsg_agent_lost_bytes_total",
        "bytes",
        "Bytes that were truncated or deleted before they were read, as far as the agent had seen them.",
        "source",
    ),
)
_ROCKETMQ: Final = (
    _gauge("txmsg_rocketmq_brokers", "brokers", "Brokers that the gateway is attached to."),
    _gauge("txmsg_rocketmq_clients", "clients", "Clients with an open Telemetry stream."),
    _gauge("txmsg_rocketmq_waiting_receives", "calls", "Receives that wait for messages."),
    _gauge(
        "txmsg_rocketmq_held_messages",
        "messages",
        "Messages held by push consumers, whose visibility timeout the gateway extends.",
    ),
    _histogram(
        "txmsg_rocketmq_call_seconds",
        "seconds",
        "Time from the start of a call to its answer. Without ReceiveMessage and Telemetry, which wait.",
        METHOD,
    ),
)
_PAGE: Final = (
    _gauge("txmsg_page_browsers", "browsers", "Connected browsers."),
    _counter("txmsg_page_bulletins_total", "bulletins", "Bulletins created, each for all browsers."),
    _gauge("txmsg_page_bulletin_bytes", "bytes", "Size of the newest bulletin."),
    _gauge(
        "txmsg_page_figures_age_seconds",
        "seconds",
        "Time since the last read from the database; before the first, since the start.",
    ),
)
_CLIENT: Final = (
    _counter("txmsg_client_calls_total", "calls", "Calls of producers that succeeded or failed.", OPERATION),
    _counter(
        "txmsg_client_errors_total",
        "calls",
        "Errors of calls, including those that were repeated successfully.",
        OPERATION,
        ERROR,
    ),
    _histogram(
        "txmsg_client_request_seconds",
        "seconds",
        "Time of a request, which serves many calls, including its repeats.",
        OPERATION,
    ),
    _gauge("txmsg_client_pending_items", "items", "Messages and outcomes that wait or are being sent."),
    _gauge("txmsg_client_outbox_rows", "transactions", "Transactions in the outbox of the producer group."),
    _gauge("txmsg_client_outbox_refused_rows", "transactions", "Those of them that brokers have refused."),
    _gauge("txmsg_client_outbox_oldest_seconds", "seconds", "Age of the oldest of them; 0 without one."),
    _counter(
        "txmsg_client_outbox_written_total",
        "transactions",
        "Transactions whose messages this process wrote to the outbox.",
    ),
    _counter("txmsg_client_outbox_relayed_total", "transactions", "Transactions whose messages this process relayed."),
    _counter(
        "txmsg_client_received_messages_total",
        "messages",
        "Messages received from brokers; of a log, messages that were handled or have failed.",
        GROUP,
    ),
    _counter(
        "txmsg_client_acknowledged_messages_total",
        "messages",
        "Acknowledgements that reached a broker; of a log, messages that were handled.",
        GROUP,
    ),
    _counter(
        "txmsg_client_refused_messages_total",
        "messages",
        "Refusals that reached a broker; of a log, messages whose handler raised.",
        GROUP,
    ),
    _counter("txmsg_client_poll_errors_total", "calls", "Calls of consumers that failed and are repeated.", GROUP),
    _gauge("txmsg_client_held_messages", "messages", "Messages received and not settled.", GROUP),
    _histogram("txmsg_handler_seconds", "seconds", "Time that calls of a handler took.", GROUP, TOPIC),
    _gauge("txmsg_handlers_running", "calls", "Calls of a handler under way.", GROUP, TOPIC),
    _counter("txmsg_handler_failures_total", "calls", "Calls of a handler that raised.", GROUP, TOPIC, ERROR),
)
_WORKER: Final = (
    _gauge(
        "txmsg_worker_processes", "processes", "Processes that run the application, including those that are ending."
    ),
    _counter(
        "txmsg_worker_restarts_total",
        "restarts",
        "Processes replaced because they had ended or exceeded the memory limit.",
    ),
)


def _of_section(section: str, processes: Iterable[ExportingProcess], metrics: Iterable[Metric]) -> Iterator[Metric]:
    for metric in metrics:
        yield replace(metric, section=section, processes=frozenset(processes))


CATALOGUE: Final = {
    metric.name: metric
    for metrics in (
        _of_section("Processes", set(ExportingProcess) - {ExportingProcess.APPLICATION}, _PROCESS),
        _of_section("Calls", (ExportingProcess.BROKER, ExportingProcess.METAQ, ExportingProcess.ROCKETMQ), _CALLS),
        _of_section("Disk", (ExportingProcess.BROKER, ExportingProcess.METAQ), _DISK),
        _of_section("Sending", (ExportingProcess.BROKER,), _SENDING),
        _of_section("Check-backs", (ExportingProcess.BROKER,), _CHECKS),
        _of_section("Delivery", (ExportingProcess.BROKER,), _DELIVERY),
        _of_section("Groups", (ExportingProcess.BROKER,), _GROUPS),
        _of_section("Segments and retention", (ExportingProcess.BROKER,), _STORAGE),
        _of_section("Leases and the Notify database", (ExportingProcess.BROKER,), _DATABASE),
        _of_section("Log", (ExportingProcess.METAQ,), _LOG),
        _of_section("Mirror", (ExportingProcess.TAILER,), _MIRROR),
        _of_section("Agents", (ExportingProcess.AGENT,), _AGENT),
        _of_section("RocketMQ's clients", (ExportingProcess.ROCKETMQ,), _ROCKETMQ),
        _of_section("Pages", (ExportingProcess.PAGE,), _PAGE),
        _of_section("Workers", (ExportingProcess.WORKER,), _WORKER),
        _of_section("Applications", (ExportingProcess.APPLICATION, ExportingProcess.WORKER), _CLIENT),
    )
    for metric in metrics
}
"""All metrics by name, in the order of the page."""

BOUNDS: Final = {
    ExportingProcess.BROKER: {
        "connections": "clients connected",
        "writer_half_items": "half messages that wait for a batch",
        "writer_half_bytes": "their bytes",
        "writer_other_items": "outcomes and plain messages that wait",
        "writer_other_bytes": "their bytes",
        "writer_replicated_items": "waiting items that a standby must confirm",
        "writer_replicated_bytes": "their bytes",
        "delivery_memory": "memory of messages held ready; above it only queues with nothing ready are read",
        "journal": "journal entries that wait to be written; further ones are lost and counted",
        "checks_in_flight": "check-backs in progress; further ones stay due",
        "sessions_delivery": "sessions of the pool in use",
        "sessions_administration": "sessions of the pool for administration in use",
        "segments": "segments kept; at the maximum none is closed",
    },
    ExportingProcess.METAQ: {
        "connections": "clients connected",
        "appending": "bytes of appends in progress",
        "sending": "bytes of fetches in transfer",
        "arriving": "bytes of incomplete requests",
        "members": "members of groups",
    },
    ExportingProcess.ROCKETMQ: {
        "connections": "clients connected",
        "calls": "calls in progress, including streams and waiting receives; further ones fail",
        "requests": "bytes of requests in progress; above it, large requests fail",
    },
}
"""The values of the label `bound`, and their meanings."""
