"""Settings of a MetaQ server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txmsg.errors import MisuseError
from txmsg.message import check_name
from txmsg.metaq.copy.copies import COPIES_MAX
from txmsg.metaq.store.log import LogConfig
from txmsg.settings.catalogue import Kind, check_settings, required, setting
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

GO_ON: Final = "go-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesConfig:
    """What appends wait for of the log's copies on other machines."""

    required: int = setting(
        0,
        "Copies whose disks must have what a synchronous topic appends before the append returns. 0: appends wait for "
        "no copy.",
        least=0,
        most=COPIES_MAX,
        option="--copies-required",
    )
    timeout_s: float = setting(
        5.0,
        "Time that an append waits for copies. Then it fails with OutcomeUnknown: it is on the disk here, and a repeat "
        "waits again.",
        least=0,
        is_open=True,
        live=True,
    )
    missing: str = setting(
        "refuse",
        "While fewer copies than required are in touch: `refuse` appends, or `go-on` without waiting for them.",
        choices=("refuse", GO_ON),
        option="--copies-missing",
        live=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaQConfig:
    """How a MetaQ server runs."""

    data_dir: Path = required(
        "Directory of the log; created if it is missing. This process is its only writer.",
        kind=Kind.PATH,
        option="--data-dir",
    )
    listen: str = setting(
        "127.0.0.1:7720",
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
        "File with users and rules (TOML). Then clients need a token or certificate of a user, and may do what rules "
        "allow.",
        kind=Kind.FILE,
        option="--access",
    )
    access_from: str = setting(
        "",
        "Brokers whose users and rules hold here, instead of a file: HOST:PORT,HOST:PORT. The server needs a user of "
        "its own, by TXMSG_TOKEN_FILE, that may `read cluster`.",
        metavar="ADDRESSES",
        option="--access-from",
    )
    access_age_s: float = setting(
        300.0,
        "How long the users and rules of brokers hold while no broker can be asked. Then nobody is let in.",
        least=4,
    )
    follow: str = setting(
        "",
        "Address of a server whose log this one copies. Then it takes no appends and has no groups of its own. "
        "`txmsg metaq follow` sets it.",
        metavar="ADDRESS",
    )
    copy_name: str = setting(
        "",
        "Name of a copy, as its leader shows it. Default: host and directory.",
        option="--copy-name",
        metavar="NAME",
        shown="host and directory",
    )
    copies: CopiesConfig = field(default_factory=CopiesConfig)
    """Of copies that follow this log."""
    zone: str = setting(
        "",
        "Where this server is, such as a data centre. Members of a group that are in the same zone own the queues, if "
        "there are any.",
        option="--zone",
        metavar="NAME",
    )
    user: UserConfig = field(default_factory=UserConfig)
    """What each user may take."""
    insecure: bool = insecure_setting()
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()
    log: LogConfig = field(default_factory=LogConfig)
    """How the log is kept."""
    connections_max: int = setting(
        16_000,
        "Clients that may be connected. More are closed as soon as they come.",
        least=1,
    )
    appending_size_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Bytes of appends under way, together. What comes then is refused with Overloaded.",
        least=1,
    )
    sending_size_bytes_max: int = setting(
        64 * 1024 * 1024,
        "Bytes of fetches on their way, together, a piece of 1 MiB each. Others wait; slow ones end.",
        least=1,
    )
    arriving_size_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Bytes of requests that have not come whole, together. Above it, the slowest is refused with Overloaded.",
        least=1,
    )
    send_timeout_s: float = setting(
        20.0,
        "Time for a piece of a fetch, and in all a second more for each MiB.",
        least=0,
        is_open=True,
    )
    stop_s: float = setting(
        10.0,
        "Time that calls under way have to finish when the server is told to stop.",
        least=0,
        is_open=True,
        live=True,
    )

    @property
    def authentication(self) -> bool:
        """Whether clients must be users."""
        return self.access is not None or bool(self.access_from)

    def access_addresses(self) -> list[str]:
        """Of `access_from`."""
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
            raise MisuseError("a copy takes no appends, which could wait for copies: leave out --copies-required")
        self.tls.check_listen(self.listen, authentication=self.authentication, insecure=self.insecure)
        self.tls.check_http_listen(self.http_listen, self.http_token_file, insecure=self.insecure)
