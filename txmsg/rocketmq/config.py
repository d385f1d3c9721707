"""Settings of a gateway for RocketMQ's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txmsg.settings.catalogue import SettingKind, check_settings, setting
from txmsg.settings.common import (
    TlsConfig,
    http_listen_setting,
    http_token_file_setting,
    insecure_setting,
    log_format_setting,
    log_level_setting,
)
from txmsg.wire.address import check_address, check_reach
from txmsg.wire.brokers import BROKERS_DEFAULT, BROKERS_VARIABLE, one_database_of
from txmsg.wire.listening import loopback

WINDOW_S: Final = 15 * 3600.0
"""Seconds by which a signature's date may differ from now: the distance of two time zones, and some more.

In both directions: a signature with a date in the future can be used for up to twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The settings of a gateway: its brokers, and the addresses on which it listens."""

    broker: str = setting(
        BROKERS_DEFAULT,
        "Brokers of one Notify database: HOST:PORT,HOST:PORT. The gateway learns the others from them.",
        metavar="ADDRESSES",
        option="--broker",
        variable=BROKERS_VARIABLE,
    )
    listen: str = setting(
        f"{loopback()}:8081",
        "Address to listen on. Port 0 picks a free port.",
        metavar="HOST:PORT",
        option="--listen",
    )
    http_listen: str = http_listen_setting()
    http_token_file: Path | None = http_token_file_setting()
    tls: TlsConfig = field(default_factory=TlsConfig)
    """The TLS settings of `listen` and `http_listen`."""
    access_key_file: Path | None = setting(
        None,
        "File that encrypts access keys, as `txmsg user access-key create` was given it. Then clients sign their calls "
        "with the access key of a user, and may do what rules allow. Brokers need --auth.",
        kind=SettingKind.FILE,
        option="--access-key-file",
        shown="clients do not authenticate",
    )
    signature_window_s: float = setting(
        WINDOW_S,
        "Maximum difference between the date of a signature and now. Clients label their local time as UTC: 15m is "
        "enough if the clocks of all of them are set to UTC.",
        least=1,
        most=86_400,
        option="--signature-window",
    )
    insecure: bool = insecure_setting()
    log_level: str = log_level_setting()
    log_format: str = log_format_setting()

    def __post_init__(self) -> None:
        check_settings(self)
        self.brokers()
        check_address("--listen", self.listen)
        check_reach(
            "--listen",
            self.listen,
            "its clients do not log in: whoever reaches it acts as its own user",
            "listen on 127.0.0.1, or give TLS (--tls-cert and --tls-key) with --access-key-file or --tls-client-ca, so "
            "that only clients with an access key or a certificate get in, or --insecure where the network itself "
            "keeps strangers away",
            is_guarded=self.insecure
            or self.tls.client_ca is not None
            or (self.tls.cert is not None and self.access_key_file is not None),
        )
        self.tls.check_http_listen(self.http_listen, self.http_token_file, insecure=self.insecure)

    def brokers(self) -> Sequence[str]:
        """Return the addresses in `broker`."""
        return one_database_of(self.broker)
