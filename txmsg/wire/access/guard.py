"""Decisions on connections and calls, by the snapshot of users and rules that a guard holds. Knows no network.

Everything is synchronous and in memory, so a call costs no round trip. The code that has the database keeps the
snapshot current: a guard that was not confirmed for `age_s_max` refuses every new connection.
"""

from __future__ import annotations

import hmac
import math
import re
import time
from collections.abc import Callable
from typing import Any, Final

from txmsg.errors import BrokerUnavailable, TxmsgError, Unauthenticated
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.keys import NEW_KEY_ID, AccessKey
from txmsg.wire.access.limits import NO_LIMITS, UserLimits
from txmsg.wire.access.permissions import denied, missing
from txmsg.wire.access.principal import Principal
from txmsg.wire.access.rules import Rights
from txmsg.wire.access.snapshot import AccessSnapshot, Credential, User
from txmsg.wire.access.tokens import ID_LENGTH, read_token

__all__ = ["ACCESS_KEY", "AGE_S_MAX", "CERTIFICATE", "Guard", "host_of"]

AGE_S_MAX: Final = 60.0
"""Seconds for which a server that cannot ask for changes of users still accepts connections."""
CERTIFICATE: Final = "certificate "
"""Prefix of `Principal.credential` for a client certificate; the name in the certificate follows."""
ACCESS_KEY: Final = "access key "
"""Prefix of `Principal.credential` for a signed call; the id of the access key follows."""
_ABSENT: Final = Credential(id="-" * ID_LENGTH, user="", secret_sha256=bytes(32), expires_at=-math.inf)
"""Compared with when no such token exists: an unknown token takes as long to refuse as a wrong one."""
_REFUSED: Final = (
    "the token is not valid here: it is wrong, expired or revoked, or of another installation; make another one with "
    "`txmsg user rotate NAME`"
)
_ABSENT_KEY: Final = AccessKey(id="-" * ID_LENGTH, user="", sealed_secret=b"")
_NOT_SIGNED: Final = (
    "the access key is not valid here: it is wrong or revoked, the secret is another one, or the clock of the client "
    "is wrong; make another access key with `txmsg user access-key create NAME`"
)
_SAID_PER_MINUTE_MAX: Final = 60
_log = EventLog(__name__)


def host_of(peer: str) -> str:
    """Return the address of a client without its port, which differs for each connection."""
    return peer.rpartition(":")[0] or peer


class Guard:
    """Authenticates connections and authorizes calls. clock: seconds since 1970; monotonic: for the age of the
    snapshot."""

    def __init__(
        self,
        *,
        age_s_max: float = AGE_S_MAX,
        limits: UserLimits = NO_LIMITS,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.snapshot = AccessSnapshot()
        self._rights: dict[str, Rights] = {}
        """Rights by user name, shared by the connections of a user."""
        self.on_change: Callable[[], None] = lambda: None
        """Called with each new snapshot: the server checks if its connections are still valid."""
        self.on_refused: Callable[[str, str], None] = lambda _host, _why: None
        """Called with each refused login: the client's host and the reason."""
        self.on_denied: Callable[[str, str, str], None] = lambda _user, _host, _what: None
        """Called with each call that lacks a right: the user, its host and the missing right."""
        self.limits = limits
        """Limits of users without their own."""
        self._said = (0, 0)
        """The current minute, and the number of refusals in it."""
        self._age_s_max = age_s_max
        self._clock = clock
        self._monotonic = monotonic
        self._confirmed_at = -math.inf

    def use_snapshot(self, snapshot: AccessSnapshot) -> None:
        """Replace the snapshot, and notify the server of the change."""
        self.snapshot, self._rights = snapshot, {}
        self.on_change()
        self.confirm()  # last: where connections could not be looked at, the age limit holds

    def forget_snapshot(self) -> None:
        """Forget the snapshot: until the next `use_snapshot` every login is refused, and connected users are
        disconnected."""
        self.snapshot, self._rights = AccessSnapshot(), {}
        self._confirmed_at = -math.inf
        self.on_change()

    def use_limits(self, limits: UserLimits) -> None:
        """Replace the limits of users without their own."""
        if limits != self.limits:
            self.limits = limits
            self.on_change()

    def confirm(self) -> None:
        """Note that the snapshot is still the newest."""
        self._confirmed_at = self._monotonic()

    @property
    def is_fresh(self) -> bool:
        """True if the snapshot was confirmed within `age_s_max` seconds, so that logins may be decided by it."""
        return self._monotonic() - self._confirmed_at <= self._age_s_max

    def authenticate(self, token: str, certificate: str, peer: str) -> Principal:
        """Return the principal of a login. A token takes precedence over a certificate. certificate: the name in a
        verified client certificate, "" without.

        Raises Unauthenticated, whose text does not say whether there is such a user; the log does. Raises
        BrokerUnavailable if the snapshot is too old to tell.
        """
        self._check_fresh()
        if token:
            return self._of_token(token, peer)
        if certificate:
            return self._of_certificate(certificate, peer)
        self._refused(peer, "", "it gave none")
        how = (
            "`txmsg metaq token` makes a token, and its entry for the server's --access file"
            if self.snapshot.file
            else "`txmsg user create NAME` makes a user and its token"
        )
        raise Unauthenticated(f"this server requires authentication: give token= or set TXMSG_TOKEN_FILE; {how}")

    def authenticate_key(self, key_id: str, objection: Callable[[AccessKey], str], peer: str) -> Principal:
        """Return the principal of a call signed by an access key; a key_id of "" means that the call is not signed.
        Raises as `authenticate`.

        objection: returns the reason why the client has not proven that it has the key's secret; "" if it has. Called
        for an unknown key, too, so that both take as long.
        """
        self._check_fresh()
        # The objection is asked for before it is known if the key exists, so that a guess of key ids cannot be timed.
        found = self.snapshot.access_keys.get(key_id)
        why = objection(found or _ABSENT_KEY)
        if not key_id:
            self._refused(peer, "", "the call is not signed")
            raise Unauthenticated(
                "this server requires calls that are signed by an access key: `txmsg user access-key create NAME` "
                "makes one"
            )
        if found is None:
            why = "it is unknown or was revoked"
        if found is None or why:
            self._refused(peer, key_id if found is not None or re.fullmatch(NEW_KEY_ID, key_id) else "", why)
            raise Unauthenticated(_NOT_SIGNED)
        return self._principal(self.snapshot.users[found.user], ACCESS_KEY + found.id)

    def renewed(self, principal: Principal) -> Principal:
        """Return the same user with its present roles and rights. Raises Unauthenticated if its credential was revoked
        or has expired."""
        # Looked up again by the credential, not by the name: a user whose certificate was given to another one must
        # lose the connection.
        if principal.credential.startswith(CERTIFICATE):
            user = self.snapshot.certificates.get(principal.credential.removeprefix(CERTIFICATE))
            if user is None or user.name != principal.name:
                raise Unauthenticated("this certificate does not stand for its user any more")
            return self._principal(user, principal.credential)
        if principal.credential.startswith(ACCESS_KEY):
            key = self.snapshot.access_keys.get(principal.credential.removeprefix(ACCESS_KEY))
            if key is None or key.user != principal.name:
                raise Unauthenticated(_NOT_SIGNED)
            return self._principal(self.snapshot.users[key.user], principal.credential)
        credential = self.snapshot.credentials.get(principal.credential)
        if credential is None or credential.user != principal.name or credential.expires_at <= self._clock():
            raise Unauthenticated(_REFUSED)
        return self._of_credential(credential)

    def limits_of(self, user: str) -> UserLimits:
        """Return the limits of a user at this server."""
        found = self.snapshot.users.get(user)
        return self.limits.with_own(found.limits) if found is not None and found.limits else self.limits

    def refusal(self, principal: Principal, method: str, request: Any) -> TxmsgError | None:
        """Return the error with which to refuse this call; None if it is allowed."""
        lacking = missing(principal.rights, method, request)
        if lacking is None:
            return None
        return denied(principal.name, *lacking, file=principal.file)

    def _check_fresh(self) -> None:
        if not self.is_fresh:
            raise BrokerUnavailable(
                f"this server could not ask for {self._age_s_max:g} s whether users have changed, and takes no new "
                "connections: ask another one"
            )

    def _of_token(self, token: str, peer: str) -> Principal:
        read = read_token(token)
        if read is None:
            self._refused(peer, "", "it is not of the form of a token")
            raise Unauthenticated(_REFUSED)
        found = self.snapshot.credentials.get(read.id)
        # The comparison runs for an unknown token, too, and in constant time: neither the existence of an id nor the
        # digits of a secret can be measured from outside.
        is_right = hmac.compare_digest((found or _ABSENT).secret_sha256, read.secret_sha256)
        if found is None or not is_right:
            self._refused(peer, read.id, "its secret is wrong" if found else "it is unknown or was revoked")
            raise Unauthenticated(_REFUSED)
        if found.expires_at <= self._clock():
            self._refused(peer, read.id, f"that of user {found.user} has expired")
            raise Unauthenticated(_REFUSED)
        return self._of_credential(found)

    def _of_certificate(self, certificate: str, peer: str) -> Principal:
        user = self.snapshot.certificates.get(certificate)
        if user is None:
            self._refused(peer, "", f"no user has the certificate {certificate!r}")
            how = (
                "name it in the server's --access file, as `certificate` of a user"
                if self.snapshot.file
                else "create one with `txmsg user create NAME --certificate` and its name"
            )
            raise Unauthenticated(f"no user has this client certificate: {how}, or give token=")
        return self._principal(user, CERTIFICATE + certificate)

    def _of_credential(self, credential: Credential) -> Principal:
        return self._principal(self.snapshot.users[credential.user], credential.id, credential.expires_at)

    def _principal(self, user: User, credential: str, expires_at: float = math.inf) -> Principal:
        # Made once per user and snapshot: all connections of a user share the same lookup tables.
        rights = self._rights.get(user.name)
        if rights is None:
            rights = self._rights[user.name] = self.snapshot.rules.rights_of(user.name, user.roles)
        return Principal(user.name, user.roles, rights, credential, expires_at, self.snapshot.file)

    def _refused(self, peer: str, credential: str, why: str) -> None:
        self.on_refused(host_of(peer), why)
        minute = int(self._monotonic() // 60)
        self._said = (minute, self._said[1] + 1 if self._said[0] == minute else 1)
        if self._said[1] > _SAID_PER_MINUTE_MAX:  # strangers must not fill the log; `on_refused` counts all
            return
        _log.warning(
            "access.refused",
            "the credential %(credential)s from %(peer)s is refused: %(why)s",
            credential=credential or "-",
            peer=peer,
            why=why,
        )
