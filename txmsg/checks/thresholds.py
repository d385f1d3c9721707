"""Thresholds of checks that operators set, as settings of brokers: `broker.alerts.group_behind_s`.

Prometheus' rules have their defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

from txmsg.settings.catalogue import COUNT_MAX, DURATION_S_MAX, SIZE_BYTES_MAX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The thresholds; each is read by a condition of a check."""

    group_behind_s: float = setting(
        300.0,
        "TxmsgGroupBehind: age of the oldest message that a group has not processed.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    dead_letters: int = setting(
        0, "TxmsgDeadLetters: number of dead letters of a group in a topic.", least=0, most=COUNT_MAX, live=True
    )
    in_doubt_s: float = setting(
        600.0,
        "TxmsgTransactionsInDoubt: age of the oldest transaction that was checked and is still undecided.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    check_overdue_s: float = setting(
        120.0,
        "TxmsgChecksOverdue: time for which the check of a transaction has been due.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    parked: int = setting(
        0, "TxmsgTransactionsParked: number of parked transactions.", least=0, most=COUNT_MAX, live=True
    )
    bound_ratio: float = setting(
        0.8, "TxmsgBoundNear: used share of a bounded resource.", least=0, most=1000, live=True
    )
    segments_ratio: float = setting(
        1.25,
        "TxmsgSegmentsTooLarge: size of all segments, relative to retention_size_bytes.",
        least=0,
        most=1000,
        live=True,
    )
    mirror_behind_s: float = setting(
        60.0,
        "TxmsgMirrorBehind: age of the oldest message that is not mirrored.",
        least=0,
        most=DURATION_S_MAX,
        live=True,
    )
    disk_free_ratio: float = setting(0.1, "TxmsgDiskNearlyFull: free share of a disk.", least=0, most=1, live=True)
    slot_kept_size_bytes: int = setting(
        10 * 1024**3,
        "TxmsgSlotKeepsLog: bytes of write-ahead log that a replication slot keeps.",
        least=0,
        most=SIZE_BYTES_MAX,
        live=True,
    )
    slot_safe_size_bytes: int = setting(
        1024**3,
        "TxmsgSlotInDanger: bytes that can still be written before the slot of a mirror is lost.",
        least=0,
        most=SIZE_BYTES_MAX,
        live=True,
    )


DEFAULTS = Thresholds()
