"""The lines of the members of a group and their unconfirmed deliveries."""

from __future__ import annotations

from contextlib import ExitStack

from txmsg.broker.delivery.members import Members
from txmsg.broker.delivery.values import PollSequenceStep, Receipt


def members_with(*calls: PollSequenceStep) -> Members:
    members = Members("g")
    members.join("c", {}, 0.0, 60)
    for line in calls:
        assert members.follow("c", line) == ()
    return members


def taken(token: int) -> list[Receipt]:
    return [Receipt(1, token, 1, [0])]


def test_only_deliveries_that_did_not_arrive_are_taken_back() -> None:
    for received, lost in ((40, []), (0, taken(40))):
        members = members_with(PollSequenceStep(7, 0, 1))
        assert members.sent("c", PollSequenceStep(7, 0, 1), taken(40)) == ()
        assert list(members.follow("c", PollSequenceStep(7, received, 2))) == lost


def test_a_replaced_delivery_is_taken_back() -> None:
    """Two calls without numbers may both take messages, and the next one can confirm only one."""
    members = members_with(PollSequenceStep(7, 0), PollSequenceStep(7, 0))
    assert members.sent("c", PollSequenceStep(7, 0), taken(50)) == ()
    assert members.sent("c", PollSequenceStep(7, 0), taken(51)) == taken(50)
    assert members.follow("c", PollSequenceStep(7, 51)) == ()


def test_a_call_is_the_latest_until_a_later_one_arrives() -> None:
    members = members_with(PollSequenceStep(7, 0, 2))
    assert [members.is_latest("c", PollSequenceStep(7, 0, call)) for call in (1, 2, 3)] == [False, True, True]
    assert members.is_latest("c", PollSequenceStep(8, 0, 1))
    assert members.is_latest("d", PollSequenceStep(7, 0, 1))


def test_each_of_many_concurrent_calls_gets_its_own_lost_deliveries() -> None:
    """There are as many as a RocketMQ client makes: a gateway has a line for each."""
    lines = [PollSequenceStep(number, 0, 1) for number in range(1, 33)]
    members = members_with(*lines)
    for line in lines:
        members.sent("c", line, taken(line.id))
    assert [members.follow("c", PollSequenceStep(line.id, 0, 2)) for line in lines] == [
        taken(line.id) for line in lines
    ]


def test_a_waiting_line_is_kept_while_others_are_replaced() -> None:
    waits = PollSequenceStep(1, 0, 1)
    members = members_with(waits)
    with members.waits("c", lambda: 0.0, waits):
        for number in range(2, 200):
            members.follow("c", PollSequenceStep(number, 0, 1))
    members.sent("c", waits, taken(40))
    members.follow("c", PollSequenceStep(200, 0, 1))
    assert members.follow("c", PollSequenceStep(1, 0, 2)) == taken(40)


def test_waiting_lines_are_bounded() -> None:
    members = members_with()
    with ExitStack() as stack:
        for number in range(1, 66):
            members.follow("c", PollSequenceStep(number, 0, 1))
            stack.enter_context(members.waits("c", lambda: 0.0, PollSequenceStep(number, 0, 1)))
        for number, told in ((1, ()), (3, taken(3))):
            members.sent("c", PollSequenceStep(number, 0, 1), taken(number))
            assert members.follow("c", PollSequenceStep(number, 0, 2)) == told
