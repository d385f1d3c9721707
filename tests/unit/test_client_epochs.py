"""Deliveries that a consumer discards as outdated."""

from __future__ import annotations

from txmsg.client.receiving.epochs import OUSTED_S_MAX, Epochs


def test_deliveries_of_a_replaced_broker_are_refused_while_they_may_be_in_transit() -> None:
    epochs = Epochs()
    assert epochs.is_current(1, 7, now=0.0)
    assert epochs.is_current(1, 8, now=100.0)
    assert not epochs.is_current(1, 7, now=100.0 + OUSTED_S_MAX - 1)
    assert epochs.is_current(1, 8, now=100.0 + OUSTED_S_MAX)
    assert epochs.is_current(2, 7, now=100.0), "each queue has epochs of its own"


def test_lower_epochs_of_a_restored_database_are_accepted_after_old_deliveries_ended() -> None:
    epochs = Epochs()
    assert epochs.is_current(1, 8, now=0.0)
    assert epochs.is_current(1, 3, now=OUSTED_S_MAX)
    assert epochs.is_current(1, 3, now=OUSTED_S_MAX)
    assert epochs.is_current(1, 4, now=OUSTED_S_MAX)
    assert not epochs.is_current(1, 3, now=OUSTED_S_MAX + 1)
