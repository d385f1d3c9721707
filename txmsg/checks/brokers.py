"""Checks of brokers, and of all processes."""

from __future__ import annotations

from typing import Final

from txmsg.checks.check import CRITICAL, NOTE, WARNING, Check
from txmsg.checks.conditions import JOB, LevelCondition, PromQL, RiseCondition, ShareCondition
from txmsg.metrics.catalogue import ERROR
from txmsg.wire.tls import EXPIRES_SOON_S

PROCESS_DOWN: Final = Check(
    "process-down",
    CRITICAL,
    "{instance} does not answer",
    why="its clients wait, or use others; consumers poll every broker",
    fix="check its log and start it; if it runs, open its port, or give it the address that clients reach by "
    "--advertise HOST:PORT. Other brokers take over the queues of one that is gone",
    condition=PromQL('up{job=~"txmsg.*"} == 0'),
    for_s=60,
)
NOT_READY: Final = Check(
    "not-ready",
    CRITICAL,
    "{instance} is not ready",
    why="it does not do its part",
    fix="request its /readyz, which gives the reason: the database, the log or the leases",
    condition=PromQL("txmsg_ready == 0 unless on (job, instance) txmsg_draining == 1"),
    for_s=120,
)
NOBODY_DELIVERS: Final = Check(
    "nobody-delivers",
    CRITICAL,
    "no broker may deliver",
    why="no message is accepted or delivered",
    fix="start `txmsg broker --storage URL`; `txmsg cluster resume BROKER` ends a drain. If brokers run, check the "
    "Notify database: their heartbeats do not reach it",
    condition=PromQL("max by (job) (txmsg_lease_held) == 0"),
    for_s=60,
)
BROKER_DIED: Final = Check(
    "broker-died",
    WARNING,
    "{value} brokers have died and are not replaced",
    why="the others do their work, and fewer may fail before delivery stops",
    fix="`txmsg cluster show` names them: check their logs, and restart them. Use `txmsg cluster forget` for brokers "
    "that will not come back; after a day all are forgotten",
    condition=LevelCondition("txmsg_brokers_dead", ">", 0, by=JOB),
    for_s=60,
)
BROKER_DRAINED: Final = Check(
    "broker-drained",
    WARNING,
    "broker {broker} is drained",
    why="it delivers nothing and accepts no messages",
    fix="`txmsg cluster resume {broker}`, unless it is under maintenance",
)
QUEUES_UNDELIVERED: Final = Check(
    "undelivered-queues",
    CRITICAL,
    "no broker delivers {value} of {queues} queues",
    why="their messages wait",
    fix="`txmsg cluster show --by-queue` names them; the logs of the brokers say why they do not take them",
)
DISK_NEARLY_FULL: Final = Check(
    "disk-nearly-full",
    CRITICAL,
    "the disk of the data of {instance} has {value:share} free",
    why="on a full disk nothing is stored: sends fail",
    fix="enlarge the disk, or keep less: `txmsg config set broker.retention_size_bytes 50GiB`; for a log --retention "
    "and --retention-size of `txmsg metaq serve`",
    condition=LevelCondition("txmsg_disk_free_ratio", "<", lambda alerts: alerts.disk_free_ratio),
    for_s=300,
)
BOUND_NEAR: Final = Check(
    "bound-near",
    WARNING,
    "{bound} of {instance} is {value:share} full",
    why="at the bound further requests wait or are refused, as docs/limits.md says",
    fix="find what is slow, or add brokers; `txmsg config explain broker` lists the bounds",
    condition=LevelCondition("txmsg_bound_used_ratio", ">", lambda alerts: alerts.bound_ratio),
    for_s=300,
)
BATCHES_SLOW: Final = Check(
    "batches-slow",
    WARNING,
    "1 percent of the batches of writer {writer} take over {value:duration}",
    why="each send waits for its batch",
    fix="check the disk of the Notify database, locks, and whether a standby confirms late",
    condition=PromQL(
        "histogram_quantile(0.99, sum by (job, writer, le) (rate(txmsg_writer_batch_seconds_bucket[5m]))) > 1"
    ),
    for_s=600,
)
SERVER_ERRORS: Final = Check(
    "server-errors",
    WARNING,
    "{instance} failed unexpectedly in calls",
    why="this is a defect of txmsg",
    fix="its log has the traceback: report it",
    condition=RiseCondition("txmsg_call_errors_total", 600, where={ERROR: "internal"}, by=("job", "instance")),
)
OPEN_FILES_NEAR: Final = Check(
    "open-files-near",
    WARNING,
    "{instance} uses {value:share} of its file descriptors",
    why="without one it accepts no connection and opens no file",
    fix="raise LimitNOFILE, or distribute the clients over more processes",
    condition=ShareCondition("txmsg_process_open_files", "txmsg_process_open_files_limit", 0.8),
    for_s=300,
)
FIGURES_OLD: Final = Check(
    "figures-old",
    WARNING,
    "figures by topic and group of {instance} are {value:duration} old",
    why="alerts on groups use old values",
    fix="the database or the log does not answer in time: look for long statements, locks and a slow disk",
    condition=PromQL("txmsg_database_figures_age_seconds > 600 or txmsg_log_figures_age_seconds > 600"),
    for_s=300,
)
FIGURES_LATE: Final = Check(
    "figures-late",
    NOTE,
    "figures of groups and topics are {value:duration} old",
    why="what is shown is as old",
    fix="nothing below 10m: the database answers slowly, as with many groups",
)
FIGURES_MISSING: Final = Check(
    "figures-missing",
    NOTE,
    "the totals lack the figures of {value} brokers: only {polled} are asked",
    why="totals are lower than they are",
    fix="use the dashboards of docs/metrics.md, which have all",
)
RELEASES_DIFFER: Final = Check(
    "releases-differ",
    WARNING,
    "processes have {value} different releases",
    why="different releases should run side by side only during an upgrade",
    fix="finish the upgrade: `txmsg cluster drain BROKER`, install, restart, one after the other",
    condition=PromQL("count by (job) (count by (job, service_version) (txmsg_build_info)) > 1"),
    for_s=3600,
)
CLIENT_RELEASES: Final = Check(
    "client-releases",
    WARNING,
    "{value} clients are of release {release}, the first {of_group} on {host}; the brokers are of {brokers}",
    why="different releases should run side by side only during an upgrade",
    fix="upgrade brokers first, then these applications; `txmsg cluster clients` lists them",
)
COMMAND_RELEASE: Final = Check(
    "command-release",
    WARNING,
    "this command is of release {release}, the brokers of {brokers}",
    why="it may report problems that do not exist, and miss others",
    fix="run `txmsg doctor` of their release",
)
CERTIFICATE_EXPIRES: Final = Check(
    "certificate-expires",
    WARNING,
    "the certificate of {instance} expires in {value:duration}",
    why="clients refuse an expired certificate",
    fix="renew it: the process reloads the file by itself",
    condition=LevelCondition("txmsg_tls_certificate_remaining_seconds", "<", EXPIRES_SOON_S, least=0),
    for_s=300,
)
CERTIFICATE_EXPIRED: Final = Check(
    "certificate-expired",
    CRITICAL,
    "the certificate of {instance} has expired",
    why="clients refuse it",
    fix="renew it: the process reloads the file by itself",
    condition=LevelCondition("txmsg_tls_certificate_remaining_seconds", "<", 0),
    for_s=60,
)
CLOCK_DIFFERS: Final = Check(
    "clock-differs",
    WARNING,
    "the clock of {instance} is {seconds} s {ahead} that of this machine",
    why="times of messages, positions by time and delayed messages are off by this difference",
    fix="`chronyc tracking` or `timedatectl` on both machines says which of them is not synchronised",
)
BROKER_UNREACHABLE: Final = Check(
    "broker-reachable",
    CRITICAL,
    "{error}",
    why="state that only brokers know is not checked, and clients with this address do not start",
    fix="start `txmsg broker`, or name another one with --broker",
)
ADDRESS_SHARED: Final = Check(
    "address-shared",
    CRITICAL,
    "{instance} answers at {address}, the address of broker {broker}",
    why="clients confuse the two: messages of one of them are not delivered",
    fix="give each broker an address of its own by --advertise HOST:PORT",
)

# ---- readiness

STOPPING: Final = Check(
    "stopping",
    NOTE,
    "the {process} is stopping",
    why="it takes no traffic any more",
    fix="nothing: others take its work",
)
NOTHING_WRITTEN: Final = Check(
    "nothing-written",
    CRITICAL,
    "nothing can be sent: {error}",
    why="the Notify database is reached and writes nothing, as with a full disk",
    fix="do what the reason says",
)
NO_LEASES: Final = Check(
    "no-leases",
    CRITICAL,
    "the broker holds no leases: it has not joined the others yet, or its heartbeats come too late",
    why="it may not deliver",
    fix="wait some seconds after a start; else check its clock and the latency of the Notify database",
)
WORKER_PROCESSES: Final = Check(
    "worker-processes",
    CRITICAL,
    "not ready: {names}",
    why="these processes handle no messages",
    fix="wait some seconds after a start; else the log says why they end",
)

# ---- of checks and rules themselves

RULE_FAILED: Final = Check(
    "rule-failed",
    WARNING,
    "rule {failing} says nothing: its statement fails",
    why="what the rule is about goes undetected",
    fix="the broker's log says why. Correct its SQL, or see to its database",
    for_s=300,
)
NOT_CHECKED: Final = Check(
    "not-checked",
    WARNING,
    "{probe} could not be looked at: {error}",
    why="problems here stay undetected",
    fix="mend what hinders it, and run `txmsg doctor` again",
)
CUT: Final = Check(
    "not-all-checked",
    WARNING,
    "{left}",
    why="this command is bounded: there may be more problems in the rest",
    fix="mend what it names, and run it again; the dashboards of docs/metrics.md show all together",
)
