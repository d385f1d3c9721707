"""TLS of a connection, without the connection: bytes from the network become the other side's data, and back.

Both transports use it, so what they check of strangers, and how they write, is the same with TLS as without. Knows no
socket and no frames. Contexts are Python's; those that are made here, which are those of all listening sockets, require
TLS 1.2 with authenticated encryption and allow no renegotiation.
"""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from txmsg.errors import MisuseError, shown
from txmsg.runtime.logs import EventLog
from txmsg.wire.frames import Buffer

TlsChoice: TypeAlias = bool | str | Path | ssl.SSLContext | None
"""A user's `tls=`: True verifies servers by the authorities that the system trusts, a path by those in that file (PEM);
a context is used as it is; False is no TLS; None is the environment's choice (`CA_VARIABLE`)."""

CA_VARIABLE: Final = "TXMSG_TLS_CA"
"""File with the authorities of servers, or "system"; unset or empty is no TLS."""
CERT_VARIABLE: Final = "TXMSG_TLS_CLIENT_CERT"
"""File with the certificate of this client, where servers want one, and with its key unless that has its own file."""
KEY_VARIABLE: Final = "TXMSG_TLS_CLIENT_KEY"

EXPIRES_SOON_S: Final = 14 * 86400.0
_WARN_AGAIN_S: Final = 86400.0
_READ_SIZE_BYTES: Final = 256 * 1024
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2: those with authenticated encryption, so none in CBC mode. Those of TLS 1.3 are all of this
kind."""
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x46"
"""A fatal alert of TLS 1.2: "protocol version"."""
_log = EventLog(__name__)


class TlsError(ConnectionError):
    """The other side has the wrong identity, refuses us, or does not speak TLS."""


class TlsStream:
    """The TLS of one connection. name: the server's name, which its client verifies; None at the server's side.

    Belongs to one thread at a time.
    """

    def __init__(self, context: ssl.SSLContext, name: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=name is None, server_hostname=name)
        self._is_agreed = False
        self._early: list[bytes] = []
        """Bytes to be sent as soon as the handshake is done."""
        self.is_ended = False
        """True if the other side has said that it sends no more."""
        with suppress(ssl.SSLWantReadError):
            self._object.do_handshake()  # a client begins

    def receive(self, data: bytes) -> bytes:
        """Return the data in these bytes of the other side; nothing during the handshake. Raises TlsError.

        Afterwards there may be bytes to send, also if it raises: see `leaving`.
        """
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self._is_agreed:
                self._agree()
            # Until it wants more: data left in the object would only be read when further bytes come, which may be
            # never.
            while part := self._object.read(_READ_SIZE_BYTES):
                said += part
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as exc:
            if not self._is_agreed and not self._outgoing.pending:
                self._outgoing.write(_ALERT)  # a client without TLS learns from it what is wrong
            raise TlsError(_text_of(exc)) from exc
        return bytes(said)

    def encrypt_pieces(self, pieces: Iterable[Buffer]) -> None:
        """Encrypt data; `leaving` returns the bytes to send."""
        if not self._is_agreed:
            self._early += map(bytes, pieces)
            return
        try:
            for piece in pieces:
                if len(piece):
                    self._object.write(piece)
        except ssl.SSLError as exc:
            raise TlsError(_text_of(exc)) from exc

    def end_sending(self) -> None:
        """Say that no more is sent."""
        with suppress(ssl.SSLError):  # it waits for the other side's end, which is read as any other bytes
            self._object.unwrap()

    def leaving(self) -> bytes:
        """Return the bytes to be written to the network now."""
        return self._outgoing.read()

    @property
    def has_certificate(self) -> bool:
        """True if the other side has shown a certificate, signed by an authority of ours. Valid after the handshake."""
        return bool(self._object.getpeercert())

    @property
    def is_agreed(self) -> bool:
        """True if the handshake is done: the other side has the right identity."""
        return self._is_agreed

    def certificate_name(self) -> str:
        """Return the name in the other side's certificate, "" if none was verified: see `name_in`."""
        return name_in(self._object.getpeercert() or {})

    def _agree(self) -> None:
        self._object.do_handshake()
        self._is_agreed = True
        early, self._early = self._early, []
        self.encrypt_pieces(early)


def name_in(certificate: Mapping[str, Any]) -> str:
    """Return the one name that stands for the holder of a certificate, which is as `ssl` gives it.

    The first URI among the alternative names, else the first DNS name, else the first e-mail address; only if there is
    none of these, the common name. One name only: a further name cannot give its holder another user's rights.
    """
    names = certificate.get("subjectAltName", ())
    for wanted in ("URI", "DNS", "email"):
        for kind, name in names:
            if kind == wanted:
                return str(name)
    common = [name for part in certificate.get("subject", ()) for key, name in part if key == "commonName"]
    return str(common[0]) if len(common) == 1 else ""


def client_context(tls: TlsChoice) -> ssl.SSLContext | None:
    """Return the context for a user's `tls=`; None for no TLS. Raises MisuseError."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is None:
        return _context_of_environment()
    if tls is False:
        return None
    check_tls(tls)
    return _verifying("tls", None if tls is True else str(tls))


def check_tls(tls: object) -> None:
    """Raise MisuseError for an invalid `tls=`. Reads no file."""
    if not (tls is None or isinstance(tls, bool | str | Path | ssl.SSLContext)):
        raise MisuseError(f"tls {shown(tls)} is not True, False, a file with certificates (PEM) or an ssl.SSLContext")


def _context_of_environment() -> ssl.SSLContext | None:
    authorities = os.environ.get(CA_VARIABLE, "")
    certificate, key = os.environ.get(CERT_VARIABLE, ""), os.environ.get(KEY_VARIABLE, "")
    if not authorities:
        if certificate or key:
            raise MisuseError(
                f"{CERT_VARIABLE} or {KEY_VARIABLE} is set without {CA_VARIABLE}: set that to the file of the "
                'authority of the servers, or to "system"'
            )
        return None
    context = _verifying(CA_VARIABLE, None if authorities == "system" else authorities)
    if certificate or key:
        _load_pair(context, certificate, key or None, f"{CERT_VARIABLE} and {KEY_VARIABLE}")
    return context


def _verifying(what: str, authorities: str | None) -> ssl.SSLContext:
    try:
        return _strict(ssl.create_default_context(cafile=authorities))
    except (OSError, ssl.SSLError) as exc:
        raise MisuseError(
            f"{what} {shown(authorities)} is not a file with certificates of authorities (PEM): {exc}"
        ) from exc


class ServerTls:
    """A server's certificate and key, and the authority of its clients if they must have a certificate. Files, all PEM.

    Raises MisuseError if one of them cannot be used.
    """

    context: ssl.SSLContext
    lenient_context: ssl.SSLContext
    """Accepts clients without a certificate, too, and asks others for theirs."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._state = self._file_states()
        self._warned_at = -math.inf
        self._try_again_at = math.inf
        self._use_loaded(*self._loaded())

    @property
    def asks_clients(self) -> bool:
        """True if clients need a certificate."""
        return self._client_ca is not None

    def remaining_s(self) -> float:
        """Return the seconds until the certificate expires."""
        return self._expires_at - time.time()

    def renew(self) -> None:
        """Read the files again if they have changed. Connections stay; new ones get the new certificate.

        A certificate that cannot be used, or is not valid now, is logged once, and the previous one stays in use. One
        that becomes valid later is used then. One that expires soon is logged, once a day.
        """
        if self.remaining_s() < EXPIRES_SOON_S and time.monotonic() - self._warned_at >= _WARN_AGAIN_S:
            self._warned_at = time.monotonic()
            _log.warning(
                "tls.certificate_expires",
                "the certificate %(path)s %(when)s: renew it, the file is read again by itself",
                path=self._certificate,
                when=_when(self.remaining_s() / 86400),
            )
        state = self._file_states()
        if state == self._state and time.time() < self._try_again_at:
            return
        self._state, self._try_again_at = state, math.inf
        try:
            loaded, begins_at, expires_at = self._loaded()
            if begins_at > time.time():
                self._try_again_at = begins_at
            _require_valid(begins_at, expires_at, time.time())
        except MisuseError as exc:
            _log.error(
                "tls.certificate_refused",
                "the certificate %(path)s was changed and cannot be used, the one before stays: %(error)s",
                path=self._certificate,
                error=exc,
            )
        else:
            self._use_loaded(loaded, begins_at, expires_at)
            _log.info("tls.certificate_read", "the certificate %(path)s is read again", path=self._certificate)

    def _file_states(self) -> list[tuple[int, int] | None]:
        """Return for each file the time of its last change and its inode: a file that is moved there may be older."""
        state: list[tuple[int, int] | None] = []
        for path in (self._certificate, self._key, self._client_ca):
            try:
                found = os.stat(path) if path is not None else None
            except OSError:
                found = None
            state.append(found and (found.st_mtime_ns, found.st_ino))
        return state

    def for_web(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """Return one context for a server that cannot replace it: each connection gets the newest certificate files.

        protocols: what is spoken, for clients that ask for it by ALPN.
        """

        # The hook that Python's ssl calls in each handshake before the certificate is sent.
        def newest(connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
            self.renew()
            if protocols:
                self.context.set_alpn_protocols(list(protocols))
            connection.context = self.context

        context = self._made(ssl.CERT_REQUIRED)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        context.sni_callback = newest  # is called, too, when a client names no server
        return context

    def _loaded(self) -> tuple[tuple[ssl.SSLContext, ssl.SSLContext], float, float]:
        """Return both contexts of the present files, and the begin and end of their validity (Unix time). Raises
        MisuseError."""
        context, (begins_at, expires_at) = self._made(ssl.CERT_REQUIRED), _validity(self._certificate)
        return (context, self._made(ssl.CERT_OPTIONAL)), begins_at, expires_at

    def _use_loaded(self, loaded: tuple[ssl.SSLContext, ssl.SSLContext], _: float, expires_at: float) -> None:
        self.context, self.lenient_context = loaded
        self._expires_at = expires_at

    def _made(self, asking: ssl.VerifyMode) -> ssl.SSLContext:
        context = _strict(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        context.num_tickets = 0  # sessions are not resumed
        _load_pair(context, self._certificate, self._key, f"{self._certificate} and {self._key}")
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as exc:
                raise MisuseError(f"{self._client_ca} is not a file with certificates (PEM): {exc}") from exc
            context.verify_mode = asking
        return context


def _validity(certificate: Path) -> tuple[float, float]:
    """Return the begin and end of a certificate's validity, in Unix time."""
    from cryptography import x509  # not of clients

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        return found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    except (OSError, ValueError, x509.InvalidVersion) as exc:  # OpenSSL has taken it, but also takes other forms
        raise MisuseError(
            f"{certificate} cannot be used, it is not known until when it is valid: {exc}; give one that begins with "
            '"BEGIN CERTIFICATE" (`openssl x509` writes such)'
        ) from exc


def _require_valid(begins_at: float, expires_at: float, now: float) -> None:
    if now >= expires_at:
        raise MisuseError(f"it has expired at {_moment(expires_at)}; give one that is valid")
    if now < begins_at:
        raise MisuseError(f"it is valid from {_moment(begins_at)} on; it is used then, or give one that is valid now")


def _moment(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _when(days: float) -> str:
    return f"expires in {days:.1f} days" if days > 0 else f"has expired {-days:.1f} days ago"


def _strict(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load_pair(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None, what: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as exc:
        raise MisuseError(f"{what} cannot be used as certificate and key (PEM, without a password): {exc}") from exc


def _no_password() -> str:
    raise ValueError("the key has a password")


def _text_of(exc: ssl.SSLError) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {exc.verify_message}"
    if exc.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}:
        return f"it does not speak TLS ({exc.reason})"
    reason = (exc.reason or str(exc)).replace("_", " ").lower()
    return f"TLS failed: {reason}"
