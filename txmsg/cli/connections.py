"""What commands talk to: a broker, by calls of its services, or a log."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from txmsg.administration import Ask
from txmsg.administration.notify import NotifyAdministration
from txmsg.cli.options import Decorator
from txmsg.errors import BrokerUnavailable, OutcomeUnknown
from txmsg.wire.address import check_address
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.credential import TOKEN_FILE_VARIABLE
from txmsg.wire.failures import was_told
from txmsg.wire.method import Method, ReplyT, RequestT

_CALL_TIMEOUT_S = 10.0

_broker: Decorator = click.option(
    "--broker",
    metavar="HOST:PORT",
    envvar="TXMSG_BROKER",
    show_envvar=True,
    default="localhost:7700",
    show_default=True,
    help="Any broker of the Notify database.",
)


def _use_token_file(_: click.Context, __: click.Parameter, path: str | None) -> None:
    if path is not None:
        os.environ[TOKEN_FILE_VARIABLE] = path  # for all connections, and those of the processes that this one starts


token_file_option: Decorator = click.option(
    "--token-file",
    metavar="FILE",
    envvar=TOKEN_FILE_VARIABLE,
    show_envvar=True,
    expose_value=False,
    callback=_use_token_file,
    help="File with the token of a user, where brokers or servers require authentication.",
)


def broker_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --broker, and --token-file."""
    return _broker(token_file_option(command))


log_option: Decorator = click.option(
    "--log",
    metavar="LOG",
    help="A MetaQ log instead of a Notify database: its directory, or the address of its server.",
)


def ask_broker(broker: str, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
    """The reply to one call. Raises the errors of errors.py."""
    try:
        with BlockingChannel(check_address("--broker", broker)) as channel:
            return channel.call(method, request, timeout_s=_CALL_TIMEOUT_S)
    except (BrokerUnavailable, OutcomeUnknown) as exc:
        if was_told(exc):
            raise
        raise BrokerUnavailable(
            f"no answer from a broker at {broker} ({exc.__cause__}): is `txmsg broker` running there, and with TLS as "
            "the environment says (TXMSG_TLS_CA)? Name another one with --broker"
        ) from exc


def asker(broker: str) -> Ask:
    """Calls any broker of a database."""
    return functools.partial(ask_broker, broker)


def administered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --broker and --log; the command gets what they name as `administration`."""

    @functools.wraps(command)
    def with_administration(*, broker: str, log: str | None, **others: Any) -> Any:
        if log is None:
            return command(administration=NotifyAdministration(asker(broker)), **others)
        if click.get_current_context().get_parameter_source("broker") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--broker is for groups of Notify, --log for those of a log: give one of them")
        from txmsg.administration.log import LogAdministration  # with txmsg[metaq] only
        from txmsg.metaq.location import open_log

        with open_log(log) as access:
            return command(administration=LogAdministration(access), **others)

    return broker_option(log_option(with_administration))
