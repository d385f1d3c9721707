"""Encryption of bodies by applications: authorized readers, and errors for unreadable ones."""

from __future__ import annotations

import os

import pytest

from txmsg.checker.fence import FenceCheckListener
from txmsg.client.asker import Asker
from txmsg.client.sending.batch import messages_of
from txmsg.errors import InvalidMessage, MisuseError
from txmsg.message import Message, ReceivedMessage, TransactionState, new_transaction_id
from txmsg.message.encryption import ENCRYPTION_HEADER, AesGcm

JULY, AUGUST = os.urandom(32), os.urandom(16)
BODY = b'{"name": "ann"}'


def received(message: Message, **changes: object) -> ReceivedMessage:
    whole = ReceivedMessage(message.topic, message.body, key=message.key, headers=message.headers)
    return whole._replace(**changes)  # type: ignore[arg-type]


def test_a_body_is_sent_as_ciphertext_and_decrypted_unchanged() -> None:
    encryption = AesGcm({"july": JULY}, current="july")
    message = Message("patient", BODY, key="ann", tag="new", headers={"trace": "1"}, ordering_key="ann")
    sent = encryption.encrypt(message)
    assert BODY not in sent.body
    assert sent.headers == {"trace": "1", ENCRYPTION_HEADER: "july"}
    assert (sent.key, sent.tag, sent.ordering_key) == ("ann", "new", "ann")
    opened = encryption.decrypt(received(sent))
    assert (opened.body, opened.headers) == (BODY, {"trace": "1"})


def test_equal_bodies_have_different_ciphertexts() -> None:
    encryption = AesGcm({"july": JULY}, current="july")
    message = Message("patient", BODY)
    assert encryption.encrypt(message).body != encryption.encrypt(message).body


def test_an_encrypted_message_is_not_encrypted_again() -> None:
    encryption = AesGcm({"july": JULY}, current="july")
    once = encryption.encrypt(Message("patient", BODY))
    assert encryption.encrypt(once) is once


@pytest.mark.parametrize("key_id", ["july", "june"])
def test_a_plaintext_body_with_the_header_is_not_sent(key_id: str) -> None:
    encryption = AesGcm({"july": JULY}, current="july")
    with pytest.raises(InvalidMessage, match=f"cannot be decrypted with key id '{key_id}'"):
        encryption.encrypt(Message("patient", BODY, headers={ENCRYPTION_HEADER: key_id}))


def test_a_plaintext_message_is_refused_where_encryption_is_required() -> None:
    encryption = AesGcm({"july": JULY}, current="july", topics={"patient"}, required=True)
    assert encryption.decrypt(received(encryption.encrypt(Message("patient", BODY)))).body == BODY
    with pytest.raises(InvalidMessage, match="of topic 'patient' is not encrypted"):
        encryption.decrypt(received(Message("patient", BODY)))
    elsewhere = received(Message("bed", BODY))
    assert encryption.decrypt(elsewhere) is elsewhere


def test_other_topics_and_plaintext_messages_are_not_changed() -> None:
    encryption = AesGcm({"july": JULY}, current="july", topics={"patient"})
    message = Message("bed", BODY)
    assert encryption.encrypt(message) is message
    in_clear = received(message)
    assert encryption.decrypt(in_clear) is in_clear


def test_a_message_encrypted_with_a_former_key_is_readable_after_rotation() -> None:
    sent = AesGcm({"july": JULY}, current="july").encrypt(Message("patient", BODY))
    rotated = AesGcm({"july": JULY, "august": AUGUST}, current="august")
    assert rotated.decrypt(received(sent)).body == BODY
    assert rotated.encrypt(Message("patient", BODY)).headers[ENCRYPTION_HEADER] == "august"


@pytest.mark.parametrize(
    "change",
    [{"topic": "bed"}, {"key": "bob"}, {"body": b""}, {"body": b"x" * 40}, {"headers": {ENCRYPTION_HEADER: "august"}}],
    ids=lambda change: next(iter(change)),
)
def test_a_tampered_message_is_refused(change: dict[str, object]) -> None:
    encryption = AesGcm({"july": JULY, "august": AUGUST}, current="july")
    sent = encryption.encrypt(Message("patient", BODY, key="ann"))
    with pytest.raises(InvalidMessage, match="cannot be decrypted with key id"):
        encryption.decrypt(received(sent, **change))


def test_an_error_names_the_missing_key_and_no_secret() -> None:
    sent = AesGcm({"july": JULY}, current="july").encrypt(Message("patient", BODY))
    late = AesGcm({"august": AUGUST}, current="august")
    with pytest.raises(InvalidMessage, match=r"key id 'july': this process has the keys \['august'\]") as refused:
        late.decrypt(received(sent))
    assert repr(sent.body)[2:20] not in str(refused.value)
    assert repr(late) == "AesGcm(keys=['august'], current='august')"


@pytest.mark.parametrize(
    ("keys", "current", "topics", "said"),
    [
        ({"july": JULY}, "june", None, "current='june' is not the id"),
        ({"july": b"short"}, "july", None, "key 'july' is not 16, 24 or 32 bytes"),
        ({"july": JULY}, "july", "patient", "is one str"),
    ],
)
def test_wrong_keys_are_refused_at_construction(
    keys: dict[str, bytes], current: str, topics: str | None, said: str
) -> None:
    with pytest.raises(MisuseError, match=said):
        AesGcm(keys, current=current, topics=topics)


def test_a_producer_encrypts_messages_and_passes_other_objects_to_validation() -> None:
    encryption = AesGcm({"july": JULY}, current="july")
    first, second = messages_of([Message("patient", BODY), "no message"], encryption)
    assert first.headers == {ENCRYPTION_HEADER: "july"}
    assert not isinstance(second, Message)


async def test_a_check_listener_gets_the_decrypted_body_and_a_missing_key_is_unknown() -> None:
    class Listener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            return TransactionState.COMMIT if message.body == BODY else TransactionState.ROLLBACK

    sent = AesGcm({"july": JULY}, current="july").encrypt(Message("patient", BODY))
    answers = []
    for encryption in (AesGcm({"july": JULY}, current="july"), AesGcm({"august": AUGUST}, current="august")):
        asker = Asker(Listener(), threads=1, encryption=encryption)
        answers.append(await asker.ask_listener(received(sent, id_bytes=new_transaction_id().bytes)))
        asker.close()
    assert answers == [TransactionState.COMMIT, TransactionState.UNKNOWN]


async def test_a_listener_that_does_not_read_bodies_answers_without_the_key() -> None:
    class Listener:
        reads_bodies = FenceCheckListener.reads_bodies

        def check(self, message: ReceivedMessage) -> TransactionState:
            return TransactionState.COMMIT

    sent = AesGcm({"july": JULY}, current="july").encrypt(Message("patient", BODY))
    asker = Asker(Listener(), threads=1, encryption=AesGcm({"august": AUGUST}, current="august"))
    assert await asker.ask_listener(received(sent, id_bytes=new_transaction_id().bytes)) is TransactionState.COMMIT
    asker.close()
