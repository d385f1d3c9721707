"""Examines a secured demo at the end: a log without a gap, a console that works, and intruders who are refused.

Knows the stage, and nothing of what happened on it.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import psycopg

from txmsg.administration.ask import Nothing
from txmsg.administration.halves import AdminService
from txmsg.administration.topics import DeleteTopic, TopicsService
from txmsg.errors import BrokerUnavailable, PermissionDenied, TxmsgError, Unauthenticated
from txmsg.metaq import LogQueue, open_log
from txmsg.ops.demo.registration import GROUPS
from txmsg.ops.demo.registration.secure_stage import RIGHTS, TOPIC, SecureStage
from txmsg.runtime.child import ChildFailed
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2
from txmsg.wire.v1.txmsg_rpc import Notify

_PATIENCE_S: Final = 30.0
_CALL_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The result. The names are those of `txmsg demo registration --secure --json`."""

    users: int
    """Of the brokers; all of their tokens were rotated."""
    mirrored: int
    """Messages in the log."""
    refused: int
    """Attempts of those who must not get in, or not do this."""
    let_in: int
    """Such attempts that were not refused as they should be."""


@dataclass(frozen=True, slots=True)
class RefusedAttempt:
    """An attempt that must be refused with this error, and a text that has these words."""

    what: str
    make: Callable[[], None]
    error: type[TxmsgError]
    words: str = ""


def examine(stage: SecureStage, verdict: dict[str, Any]) -> tuple[dict[str, Any], Security]:
    """The verdict on the databases with that on the log and on intruders; raises ChildFailed if the console fails."""
    registered = _registered_by_message(stage)
    mirrored = _mirrored(stage, len(registered))
    look_at_console(stage)
    attempts = _attempts(stage)
    let_in = [text for attempt in attempts if (text := _try(attempt)) is not None]
    missing, phantom = registered - mirrored.keys(), mirrored.keys() - registered
    duplicated = sum(n - 1 for n in mirrored.values())
    findings = [
        *verdict["findings"],
        *(f"log: user {user} is missing" for user in sorted(missing)),
        *(f"log: {user} is no user" for user in sorted(phantom)),
        *(f"log: user {user} is there {n} times" for user, n in mirrored.items() if n > 1),
        *let_in,
    ]
    security = Security(
        users=len(RIGHTS), mirrored=mirrored.total(), refused=len(attempts) - len(let_in), let_in=len(let_in)
    )
    return {
        **verdict,
        "missing": verdict["missing"] + len(missing),
        "duplicated": verdict["duplicated"] + duplicated,
        "phantom": verdict["phantom"] + len(phantom),
        "findings": findings,
    }, security


# ---- the log


def _registered_by_message(stage: SecureStage) -> set[str]:
    """Of those who tried the old ways there is no message."""
    with psycopg.connect(stage.url("users")) as users, psycopg.connect(stage.url("attempts")) as attempts:
        registered = {str(row[0]) for row in users.execute("select id from users")}
        return registered.difference(
            str(row[0]) for row in attempts.execute("select user_id from attempt where way <> 'message'")
        )


def _mirrored(stage: SecureStage, count: int) -> Counter[str]:
    """Return how often each user is in the log, when it has so many messages, or after a while."""
    with open_log(stage.log_address, tls=stage.context("reader"), token=stage.token_file("reader")) as log:
        queues = [LogQueue(TOPIC, number) for number in log.queues_of(TOPIC)]
        until = time.monotonic() + _PATIENCE_S
        while sum(kept.end for kept in log.ranges(queues).values()) < count and time.monotonic() < until:
            time.sleep(0.2)
        seen: Counter[str] = Counter()
        offsets = dict.fromkeys(queues, 0)
        while found := log.fetch(offsets):
            for fetched in found:
                if fetched.error is not None:
                    raise fetched.error
                for batch in fetched.batches:
                    seen.update(message.json()["user_id"] for message in batch.messages())
                    offsets[fetched.queue] = batch.end_offset
        return seen


# ---- the console


def look_at_console(stage: SecureStage) -> None:
    """Logs in as the operator, and has the topic and the log shown. Raises ChildFailed."""
    address = stage.console_url.removeprefix("https://")
    connection = http.client.HTTPSConnection(address, timeout=_CALL_S_MAX, context=stage.context("operator"))
    try:
        own = {"Sec-Fetch-Site": "same-origin"}
        csrf = re.search('name="csrf" value="([^"]+)"', _get(connection, "/login", own))
        form = {"token": stage.token_file("operator").read_text().strip(), "csrf": csrf[1] if csrf else ""}
        connection.request(
            "POST", "/login", urlencode(form), own | {"Content-Type": "application/x-www-form-urlencoded"}
        )
        answer = connection.getresponse()
        answer.read()
        session = {**own, "Cookie": (answer.headers["Set-Cookie"] or "").partition(";")[0]}
        for page, text in (("/notify/topics", TOPIC), ("/notify/logs/metaq", TOPIC), ("/notify/groups", GROUPS[0])):
            if text not in _get(connection, page, session):
                raise ChildFailed(f"the console shows its operator no {text} at {page}")
    finally:
        connection.close()


def _get(connection: http.client.HTTPSConnection, path: str, headers: dict[str, str]) -> str:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != http.HTTPStatus.OK:
        said = " ".join(re.sub("<[^>]*>", " ", text.partition("<main")[2]).split())
        raise ChildFailed(f"the console answers {answer.status} at {path}: {said[:500]}")
    return text


# ---- those who must be refused


def _attempts(stage: SecureStage) -> list[RefusedAttempt]:
    foreign = stage.certificates.with_name("foreign")
    stage.issue(foreign, "supervisor")
    known, token = stage.context("supervisor"), stage.token_file("supervisor")
    log, other, revoked = stage.log_address, stage.brokers["broker-2"], stage.revoked_token

    def ask(tls: ssl.SSLContext | bool, token: str | Path, address: str = stage.brokers["broker"]) -> None:
        _call(BlockingChannel(address, tls=tls, token=token), AdminService.stats, Nothing())

    def call_as(user: str, method: Any, request: Any) -> None:
        _call(stage.channel(user=user), method, request)

    message = txmsg_pb2.MessageColumns(topic=TOPIC, transaction_id=bytes(16), body=[b"{}"], born_at_us=[0])
    forged = txmsg_pb2.SendRequest(group="forger", batches=[message])
    stolen = txmsg_pb2.ReceiveRequest(
        group=GROUPS[1], client_id="thief", subscriptions=[txmsg_pb2.Subscription(topic=TOPIC, tags="*")]
    )
    deletion = DeleteTopic(topic=TOPIC)
    return [
        RefusedAttempt("without TLS", lambda: ask(False, token), BrokerUnavailable, "TLS"),
        RefusedAttempt(
            "without a certificate", lambda: ask(stage.context(""), token), BrokerUnavailable, "certificate"
        ),
        RefusedAttempt(
            "with a certificate of another authority",
            lambda: ask(stage.context("supervisor", foreign), token),
            BrokerUnavailable,
            "unknown ca",
        ),
        RefusedAttempt("without a token", lambda: ask(known, ""), Unauthenticated),
        RefusedAttempt("with a revoked token", lambda: ask(known, revoked), Unauthenticated),
        RefusedAttempt("with a revoked token at the other broker", lambda: ask(known, revoked, other), Unauthenticated),
        RefusedAttempt("with a revoked token at the log", lambda: ask(known, revoked, log), Unauthenticated),
        RefusedAttempt("a subscriber that sends", lambda: call_as(GROUPS[0], Notify.send, forged), PermissionDenied),
        RefusedAttempt(
            "a subscriber of another group", lambda: call_as(GROUPS[0], Notify.receive, stolen), PermissionDenied
        ),
        RefusedAttempt(
            "an operator who deletes", lambda: call_as("operator", TopicsService.delete, deletion), PermissionDenied
        ),
    ]


def _call(channel: BlockingChannel, method: Any, request: Any) -> None:
    with channel:
        channel.call(method, request, timeout_s=_CALL_S_MAX)


def _try(attempt: RefusedAttempt) -> str | None:
    """Return the error if an attempt is not refused as it should be."""
    try:
        attempt.make()
    except TxmsgError as exc:
        if isinstance(exc, attempt.error) and attempt.words in str(exc):
            return None
        return f"{attempt.what}: not refused by {attempt.error.__name__}, but {exc!r}"
    return f"{attempt.what}: let in"
