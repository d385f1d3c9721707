"""Settings of a MetaQ server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txmsg.errors import MisuseError
from txmsg.message import check_name
from txmsg.metaq.copy.copies import COPIES_MAX
from txmsg.metaq.store.log import LogConfig
from txmsg.settings.catalogue import SettingKind, check_settings, required, setting
from txmsg.settings.common import (
    TlsConfig,
    UserConfig,
    http_listen_setting,
    http_token_file_setting,
    insecure_setting,
    log_format_setting,
    log_level_setting,
)
from txmsg.wire.address import UNIX, check_address
from txmsg.wire.listening import loopback

GO_ON: Final = "go-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesConfig:
    """Settings of the copies on other machines that appends wait for."""

    required: int = setting(
        0,
        "Number of copies that must have an append to a synchronous topic on disk before it returns. 0: appends do "
        "not wait for copies.",
        least=0,
        most=COPIES_MAX,
        option="--copies-required",
    )
    timeout_s: float = setting(
        5.0,
        "Time that an append waits for copies. After that it fails with OutcomeUnknown: it is on this server's disk, "
        "and a repeat waits again.",
        least=0,
        is_open=True,
        live=True,
    )
    missing: str = setting(
        "refuse",
        "If fewer copies than required are connected: `refuse` appends, or `go-on` without waiting for copies.",
        choices=("refuse", GO_ON),
        option="--copies-missing",
        live=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaQConfig:
    """Settings of a MetaQ server."""

    data_dir: Path = required(
        "Directory of the log; created if it is missing. This process is its only writer.",
        kind=SettingKind.PATH,
        option="--data-dir",
    )
    listen: str = setting(
        f"{loopback()}:7720",
        "Address to listen on: HOST:PORT (port 0 picks a free port), or unix:PATH.",
        metavar="ADDRESS",
        option="--listen",
    )
    http_listen: str = http_listen_setting()
    http_token_file: Path | None = http_token_file_setting()
    tls: TlsConfig = field(default_factory=TlsConfig)
    """TLS of `listen` and `http_listen`."""
    access: Path | None = setting(
        None,
        "TOML file with users and rules. Clients then need a token or certificate of a user, and may do only what "
        "rules allow.",
        kind=SettingKind.FILE,
        option="--access",
    )
    access_from: str = setting(
        "",
        "Brokers whose users and rules apply here, instead of a file: HOST:PORT,HOST:PORT. The server needs its own "
        "user, in TXMSG_TOKEN_FILE, that may `read cluster`.",
        metavar="ADDRESSES",
        option="--access-from",
    )
    access_age_s: float = setting(
        300.0,
        "Time for which the users and rules of brokers apply while no broker answers. After that no user is admitted.",
        least=4,
    )
    follow: str = setting(
        "",
        "Address of a server whose log this server copies. It then accepts no appends and has no groups of its own. "
        "Set by `txmsg metaq follow`.",
        metavar="ADDRESS",
    )
    copy_name: str = setting(
        "",
        "Name of a copy, shown by its leader. Default: host and directory.",
        option="--copy-name",
        metavar="NAME",
        shown="host and directory",
    )
    copies: CopiesConfig = field(default_factory=CopiesConfig)
    """Settings of copies that follow this log."""
    zone: str = setting(
        "",
        "Location of this server, such as a data centre. Queues are assigned to the members of a group in the same "
        "zone, if there are any.",
        option="--zone",
        metavar="NAME",
    )
    user: UserConfig = field(default_factory=UserConfig)
    """The limits of each user."""
    insecure: bool = insecure_setting()
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()
    log: LogConfig = field(default_factory=LogConfig)
    """Settings of the log."""
    connections_max: int = setting(
        16_000,
        "Maximum number of connected clients. Further connections are closed at once.",
        least=1,
    )
    appending_size_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Bytes of all appends in progress. Further appends are refused with Overloaded.",
        least=1,
    )
    sending_size_bytes_max: int = setting(
        64 * 1024 * 1024,
        "Bytes of all fetches in transfer, 1 MiB each at a time. Others wait; slow ones are ended.",
        least=1,
    )
    arriving_size_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Bytes of all incomplete requests. Above this, the slowest is refused with Overloaded.",
        least=1,
    )
    send_timeout_s: float = setting(
        20.0,
        "Time for a piece of a fetch; the whole fetch has this time and a second for each MiB.",
        least=0,
        is_open=True,
    )
    stop_s: float = setting(
        10.0,
        "Time that calls in progress have to finish when the server stops.",
        least=0,
        is_open=True,
        live=True,
    )

    @property
    def authentication(self) -> bool:
        """True if clients must be users."""
        return self.access is not None or bool(self.access_from)

    def access_addresses(self) -> list[str]:
        """Return the addresses of `access_from`."""
        return [check_address("--access-from", each) for each in self.access_from.split(",") if each]

    def __post_init__(self) -> None:
        check_settings(self)
        if self.access is not None and self.access_from:
            raise MisuseError("users come from a file or from brokers: give --access or --access-from, not both")
        self.access_addresses()
        if self.zone:
            check_name("--zone", self.zone)
        if self.follow and not self.follow.startswith(UNIX):
            check_address("the leader of a copy", self.follow)
        if self.follow and self.copies.required:
            raise MisuseError("a copy accepts no appends that could wait for copies: leave out --copies-required")
        self.tls.check_listen(self.listen, authentication=self.authentication, insecure=self.insecure)
        self.tls.check_http_listen(self.http_listen, self.http_token_file, insecure=self.insecure)
