"""A message as read by a consumer."""

from __future__ import annotations

from decimal import Decimal

import pytest

from txmsg.client.flows.body import body_of_arguments
from txmsg.errors import InvalidMessage
from txmsg.message import ReceivedMessage


def test_json_returns_the_arguments_of_the_decorated_function() -> None:
    body = body_of_arguments({"user": "Müller", "amount": Decimal("1.10"), "tags": [1, None]}, owner="place()")
    assert ReceivedMessage("order", body).json() == {"user": "Müller", "amount": "1.10", "tags": [1, None]}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"order 7", b"[" * 100_000])
def test_a_body_that_is_not_json_is_named_with_its_message(body: bytes) -> None:
    message = ReceivedMessage("order", body)
    with pytest.raises(InvalidMessage, match=rf"body of message {message.id} of topic 'order' is not JSON \(.+\)"):
        message.json()
