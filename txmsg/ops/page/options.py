"""Command-line options of servers of pages for browsers."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import click

_Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _pem_option(name: str, what: str) -> _Option:
    return click.option(name, metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help=what)


_WEB_TLS: tuple[_Option, ...] = (
    _pem_option("--tls-cert", "Certificate chain (PEM): pages are served with HTTPS. Reloaded when it changes."),
    _pem_option("--tls-key", "Private key of the certificate, without a password (PEM)."),
    _pem_option("--tls-client-ca", "CAs (PEM). Each browser must have a certificate of one of them."),
    click.option(
        "--insecure", is_flag=True, help="Allow other machines to connect without TLS: only for trusted networks."
    ),
)


def web_tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `tls_cert`, `tls_key`, `tls_client_ca` and `insecure`."""
    return reduce(lambda decorated, option: option(decorated), reversed(_WEB_TLS), command)
