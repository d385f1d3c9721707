"""A correct record of a run, for tests of the judge to change."""

from __future__ import annotations

from tests.chaos.history import GROUPS, GroupProgress, Handling, Record, Row, Sending, SendMethod, Sent, Told
from tests.chaos.judge import wants

FENCED, REFUSED, CLASSIC, PLAIN = "p.1", "p.2", "p.3", "p.4"
CREATED, PAID, LATE = "p.6", "p.7", "p.8"
"""Two messages of one ordering key, and a delayed one."""
KEY = "order 1"


def sample() -> Record:
    """Return a record with a committed transaction, a rolled-back one, one with a listener, and a plain send."""
    record = Record()
    common = Sent("trade")
    for sending in (
        Sending(FENCED, SendMethod.FENCED, [common, common], begun=1, returned_at=2),
        Sending(REFUSED, SendMethod.FENCED, [common], begun=3, failed="refused"),
        Sending(CLASSIC, SendMethod.CLASSIC, [common], begun=5, half_at=6, told=[Told("commit", 7, 8, "ok")]),
        Sending(PLAIN, SendMethod.PLAIN, [Sent("trade", "rare")], begun=9, stored_at=10, returned_at=10),
    ):
        record.sendings[sending.serial] = sending
    record.committed |= {FENCED, CLASSIC}
    record.rolled_back.add("t2")
    store(record, row_of(0, FENCED), row_of(1, FENCED, n=1), row_of(2, CLASSIC), row_of(3, PLAIN, tag="rare"))
    record.sendings[CREATED] = Sending(
        CREATED,
        SendMethod.CLASSIC,
        [Sent("story", ordering_key=KEY)],
        begun=1,
        half_at=2,
        told=[Told("commit", 6, 7, "ok")],
    )
    record.sendings[PAID] = Sending(PAID, SendMethod.PLAIN, [Sent("story", ordering_key=KEY)], begun=3, stored_at=4)
    record.sendings[LATE] = Sending(
        LATE, SendMethod.PLAIN, [Sent("user", delay_s=5)], begun=1, begun_at=100.0, stored_at=2
    )
    record.committed.add(CREATED)
    record.rows += [
        Row("story", 0, 0, 1, "t6", 0, f"{CREATED}/0", "common", KEY),
        Row("story", 0, 1, 1, "t7", 0, f"{PAID}/0", "common", KEY),
        Row("user", 0, 0, 1, "t8", 0, f"{LATE}/0", "common"),
    ]
    got = {f"{PAID}/0": 13.0}
    for row in record.rows:
        for group, topics in GROUPS.items():
            if wants(topics, row):
                at = got.get(row.body, 11)
                record.handlings.append(Handling(group, row.body, row.place, 1, "c", at, at + 1, True, got_at=106.0))
        record.effects[row.body] = 1
    for group in GROUPS:
        record.cursors |= {(group, "trade", 0): GroupProgress(4, 0), (group, "story", 0): GroupProgress(2, 0)}
        record.cursors[group, "user", 0] = GroupProgress(1, 0)
    return record


def row_of(offset: int, serial: str, *, n: int = 0, tag: str = "common", segment: int = 1) -> Row:
    """Return a message in the first queue of trade."""
    return Row("trade", 0, offset, segment, f"t{serial[-1]}", n, f"{serial}/{n}", tag)


def store(record: Record, *rows: Row) -> None:
    """Store these messages in the first queue of trade."""
    record.rows[:] = [*rows, *(row for row in record.rows if row.topic != "trade")]
