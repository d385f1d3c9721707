"""Remembered appends of producers: which ones, for how long, and the content of their notes."""

from __future__ import annotations

import pytest

from txmsg.errors import Overloaded, ProtocolError
from txmsg.metaq.server.producers import REMEMBERED_S, AppendNote, CallId, Placed, RememberedAppends

A, B = bytes(16), bytes([1]) * 16


def test_repeated_append_gets_the_first_answer() -> None:
    producers = RememberedAppends()
    assert producers.answer_of(CallId(A, 1), 1, 0) is None
    producers.note(CallId(A, 1), 1, [7, 0], 0)
    assert producers.answer_of(CallId(A, 1), 1, 1) == (7, 0)
    assert producers.answer_of(CallId(B, 1), 1, 1) is None, "the number is another producer's, too"


def test_answer_the_producer_no_longer_needs_is_dropped_and_a_late_repeat_refused() -> None:
    producers = RememberedAppends()
    for sequence in (1, 2, 3):
        producers.note(CallId(A, sequence), 1, [sequence], 0)
    assert producers.answer_of(CallId(A, 4), 3, 0) is None
    assert producers.answer_of(CallId(A, 3), 1, 0) == (3,), "an older word of what is settled changes nothing"
    with pytest.raises(ProtocolError, match="append 2 of a producer that repeats none below 3 came late"):
        producers.answer_of(CallId(A, 2), 2, 0)
    producers.note(CallId(A, 2), 1, [2], 0)
    with pytest.raises(ProtocolError):
        producers.answer_of(CallId(A, 2), 2, 0)


def test_idle_producer_is_forgotten_after_its_repeat_window() -> None:
    producers = RememberedAppends()
    producers.note(CallId(A, 1), 1, [5], 0)
    producers.note(CallId(B, 1), 1, [6], 10)
    producers.note(CallId(A, 2), 1, [7], 50)
    assert producers.answer_of(CallId(B, 1), 1, 10 + REMEMBERED_S + 1) is None
    assert producers.answer_of(CallId(A, 1), 1, 49 + REMEMBERED_S) == (5,)
    assert producers.answer_of(CallId(A, 1), 1, 50 + 3 * REMEMBERED_S) is None
    assert len(producers) == 1


def test_pending_appends_of_a_producer_are_bounded() -> None:
    producers = RememberedAppends()
    for sequence in range(1, 1025):
        producers.note(CallId(A, sequence), 1, [0], 0)
    with pytest.raises(Overloaded, match="more than 1024 pending appends"):
        producers.answer_of(CallId(A, 1025), 1, 0)
    assert producers.answer_of(CallId(A, 1024), 1, 0) == (0,), "a repeat is none more"
    assert producers.answer_of(CallId(A, 1025), 2, 0) is None


def test_note_round_trips() -> None:
    placed = (Placed("t" * 127, 1023, 2**63, 1024 * 1024, 2**32 - 1), Placed("%a", 0, 0, 0, 0))
    note = AppendNote(CallId(B, 2**64 - 1), 2**64 - 2, placed)
    assert AppendNote.unpack(note.pack()) == note
