"""Which deliveries a consumer takes for out of date."""

from __future__ import annotations

from txmsg.client.receiving.epochs import OUSTED_S_MAX, Epochs


def test_what_an_ousted_broker_gave_is_refused_as_long_as_it_may_be_on_its_way() -> None:
    epochs = Epochs()
    assert epochs.is_current(1, 7, now=0.0)
    assert epochs.is_current(1, 8, now=100.0)
    assert not epochs.is_current(1, 7, now=100.0 + OUSTED_S_MAX - 1)
    assert epochs.is_current(1, 8, now=100.0 + OUSTED_S_MAX)
    assert epochs.is_current(2, 7, now=100.0), "each queue has epochs of its own"


def test_epochs_that_went_back_with_the_database_are_taken_when_nothing_old_can_come_any_more() -> None:
    epochs = Epochs()
    assert epochs.is_current(1, 8, now=0.0)
    assert epochs.is_current(1, 3, now=OUSTED_S_MAX)
    assert epochs.is_current(1, 3, now=OUSTED_S_MAX)
    assert epochs.is_current(1, 4, now=OUSTED_S_MAX)
    assert not epochs.is_current(1, 3, now=OUSTED_S_MAX + 1)
