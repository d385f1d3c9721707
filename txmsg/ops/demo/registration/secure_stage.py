"""The same stage, secured: mutual TLS, and for each part a user with a token and no more rights than it needs.

Beside the parts of the other stage there are a second broker, a MetaQ server, the tailer that mirrors the messages into
it, and the console. Files are below access/, which only their owner may read:

    certificates/   an authority, a certificate for all servers, and one for each client
    NAME.token      of each user; read again at each connection
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from txmsg.administration.access import AccessService, IssuedToken, NewUser, Revoke, RotateToken, user_of
from txmsg.administration.ask import AskBroker
from txmsg.administration.rules import RulesService
from txmsg.ops.demo.registration import GROUPS
from txmsg.ops.demo.registration.registration_stage import RegistrationStage
from txmsg.runtime.child import Child, ChildFailed
from txmsg.wire.access.rules import parse_rule
from txmsg.wire.address import host_and_port
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.credential import TOKEN_FILE_VARIABLE
from txmsg.wire.listening import loopback
from txmsg.wire.ports import own_port
from txmsg.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

TOPIC: Final = "user.registered"
SERVICE: Final = "user-service"
"""The service's producer group, and its user."""
RIGHTS: Final[Mapping[str, Sequence[str]]] = {
    SERVICE: (f"send topic:{TOPIC}", f"send group:{SERVICE}", f"check group:{SERVICE}"),
    **{group: (f"receive topic:{TOPIC}", f"receive group:{group}") for group in GROUPS},
    "metaq": ("read cluster",),
    "tailer": (f"send topic:{TOPIC}", f"receive topic:{TOPIC}"),
    "reader": (f"receive topic:{TOPIC}",),
    "operator": ("describe cluster", "describe topic:*", "describe group:*"),
    "supervisor": ("describe cluster",),
}
"""The rights of each user: all that its part needs. `reader` reads the log, `operator` looks at the console."""
_ADMIN: Final = "admin"
_SERVED_S_MAX: Final = 30.0
_CALL_S_MAX: Final = 10.0


class SecureStage(RegistrationStage):
    """Everything but the users who register."""

    page_scheme = "https"
    broker_names = ("broker", "broker-2")

    def __init__(self, directory: Path, *, slow_ms: int) -> None:
        super().__init__(directory, slow_ms=slow_ms)
        self.log_address = f"{loopback()}:{own_port()}"
        self.console_url = ""
        self.revoked_token = ""
        """One that was valid once."""
        self._access = directory / "access"
        self.certificates = self._access / "certificates"

    # ---- what is started

    def _prepare(self) -> None:
        self._access.mkdir(mode=0o700)
        self.issue(self.certificates, _ADMIN, "console", *RIGHTS)
        user = ("user", "create", _ADMIN, "--role", "admin", "--storage", self.url("notify"))
        self.run("first-user", "txmsg.ops.cli.main", *user, "--out", str(self.token_file(_ADMIN)))

    def _admit(self) -> None:
        with self.channel(user=_ADMIN) as channel:
            ask = _asker(channel)
            for name, rights in RIGHTS.items():
                self._write_token(name, ask(AccessService.create_user, NewUser(name=name)))
                for right in rights:
                    ask(RulesService.allow, parse_rule(name, *right.split(" ")))
        self._start_log()
        self.start_tailer(self.log_address, "--topics", TOPIC).wait_ready()
        self.console_url = self.start_console("--log", f"metaq={self.log_address}", *self._tls_options())

    def issue(self, directory: Path, *clients: str) -> None:
        """Certificates for servers and these clients, of the authority in this directory."""
        names = [word for name in clients for word in ("--client", name)]
        self.run("certificates", "txmsg.ops.cli.main", "cert", "dev", "--dir", str(directory), *names)

    def start_broker(self, name: str = "broker", *options: str) -> Child:
        return super().start_broker(name, "--auth", *self._tls_options(), *options)

    def _start_log(self) -> None:
        where = ("--data-dir", str(self.directory / "metaq"), "--listen", self.log_address)
        options = (*where, "--access-from", self.broker_addresses, *self._tls_options())
        self.start_command("metaq", "metaq", "serve", *options).wait_ready()

    def _tls_options(self) -> Sequence[str]:
        files = {"cert": "server.pem", "key": "server.key", "client-ca": "ca.pem"}
        return [f"--tls-{name}={self.certificates / file}" for name, file in files.items()]

    # ---- who is who

    def token_file(self, user: str) -> Path:
        """Return the file of a user's token."""
        return self._access / f"{user}.token"

    def credentials(self, name: str) -> dict[str, str]:
        user = SERVICE if name.startswith("service-") else name
        if user not in RIGHTS and user != "console":
            return super().credentials(name)
        variables = super().credentials(name) | {
            CA_VARIABLE: str(self.certificates / "ca.pem"),
            CERT_VARIABLE: str(self.certificates / f"{user}.pem"),
            KEY_VARIABLE: str(self.certificates / f"{user}.key"),
        }
        if user in RIGHTS:  # the console has no rights of its own
            variables[TOKEN_FILE_VARIABLE] = str(self.token_file(user))
        return variables

    def context(self, client: str, certificates: Path | None = None) -> ssl.SSLContext:
        """TLS with the certificate of a client; "" for none."""
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        if client:
            directory = certificates or self.certificates
            context.load_cert_chain(directory / f"{client}.pem", directory / f"{client}.key")
        return context

    def channel(self, broker: str = "broker", user: str = "supervisor") -> BlockingChannel:
        return BlockingChannel(self.brokers[broker], tls=self.context(user), token=self.token_file(user))

    # ---- rotation

    def rotate(self) -> None:
        """Gives the servers another certificate, and each user another token; those before are good for nothing then.

        Nothing is restarted: a connection that ends with its token is made again, with what the file has now.
        """
        self.children["broker"].wait_ready()
        self.issue(self.certificates, "supervisor")
        for address in (*self.brokers.values(), self.log_address, self.console_url.removeprefix("https://")):
            self._wait_served(address)
        with self.channel(user=_ADMIN) as channel:
            ask = _asker(channel)
            for name in RIGHTS:
                [old] = user_of(ask, name).tokens
                self.revoked_token = self.token_file(name).read_text().strip()
                self._write_token(name, ask(AccessService.rotate_token, RotateToken(name=name)))
                ask(AccessService.revoke, Revoke(name=name, token=old.id))

    def _write_token(self, user: str, issued: IssuedToken) -> None:
        assert issued.token is not None
        _write_private(self.token_file(user), issued.token)

    def _wait_served(self, address: str) -> None:
        """Until a new connection gets the certificate that is in the file. Raises ChildFailed if it never does."""
        wanted = ssl.PEM_cert_to_DER_cert(_first_certificate(self.certificates / "server.pem"))
        context, (host, port) = self.context("supervisor"), host_and_port(address)
        until = time.monotonic() + _SERVED_S_MAX
        while time.monotonic() < until:
            with (
                socket.create_connection((host, port), timeout=_CALL_S_MAX) as plain,
                context.wrap_socket(plain, server_hostname=host) as connection,
            ):
                if connection.getpeercert(binary_form=True) == wanted:
                    return
            time.sleep(0.1)
        raise ChildFailed(f"the server at {address} has its old certificate {_SERVED_S_MAX:.0f} s after it was changed")


def _asker(channel: BlockingChannel) -> AskBroker:
    return lambda method, request: channel.call(method, request, timeout_s=_CALL_S_MAX)


def _first_certificate(path: Path) -> str:
    end = "-----END CERTIFICATE-----"
    return path.read_text().partition(end)[0] + end


def _write_private(path: Path, text: str) -> None:
    """Moved into place, so that each reader gets either token whole."""
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(f"{text}\n")
    new.replace(path)
