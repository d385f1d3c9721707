"""Connections of commands: to a broker, by calls of its services, or to a log."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from txmsg.administration.ask import AskBroker
from txmsg.administration.notify import NotifyAdministration
from txmsg.errors import BrokerUnavailable, InvalidName, MisuseError, OutcomeUnknown
from txmsg.metaq.consumer.options import LOG_VARIABLE
from txmsg.ops.cli.options import Decorator
from txmsg.wire.address import KAFKA
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.brokers import BROKERS_DEFAULT, BROKERS_VARIABLE, one_database_of
from txmsg.wire.credential import TOKEN_FILE_VARIABLE
from txmsg.wire.failures import was_told
from txmsg.wire.method import Method, ReplyT, RequestT

_CALL_TIMEOUT_S = 10.0
KAFKA_CONFIG_VARIABLE = "TXMSG_KAFKA_CONFIG"

_broker: Decorator = click.option(
    "--broker",
    metavar="HOST:PORT[,HOST:PORT]...",
    envvar=BROKERS_VARIABLE,
    show_envvar=True,
    default=BROKERS_DEFAULT,
    show_default=True,
    help="Brokers of the Notify database; the first that answers is used.",
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
    help="File with the token of a user, if brokers or servers require authentication.",
)


def broker_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --broker, and --token-file."""
    return _broker(token_file_option(command))


def _use_kafka_config(_: click.Context, __: click.Parameter, path: Path | None) -> None:
    if path is not None:
        os.environ[KAFKA_CONFIG_VARIABLE] = str(path)  # for all logs that this command opens


kafka_config_option: Decorator = click.option(
    "--kafka-config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar=KAFKA_CONFIG_VARIABLE,
    show_envvar=True,
    expose_value=False,
    callback=_use_kafka_config,
    help="For a log in Kafka: file with properties of its client, one NAME=VALUE per line, such as security.protocol.",
)
_log: Decorator = click.option(
    "--log",
    metavar="LOG",
    required=True,
    envvar=LOG_VARIABLE,
    show_envvar=True,
    help="The log: its directory, the address of its server, or kafka://HOST:PORT.",
)
_log_instead: Decorator = click.option(
    "--log",
    metavar="LOG",
    help="A MetaQ log instead of a Notify database: its directory, the address of its server, or kafka://HOST:PORT.",
)


def log_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --log, --token-file and --kafka-config."""
    return _log(token_file_option(kafka_config_option(command)))


class LogDirectory(click.Path):
    """A directory that is, or contains, files of a log. Such commands need neither a server nor a Kafka."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False, exists=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).startswith(KAFKA):
            self.fail(
                f"{value} is a log in Kafka, whose files are its brokers' own: look at them with kafka-dump-log.sh.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


def ask_broker(broker: str, method: Method[RequestT, ReplyT], request: RequestT) -> ReplyT:
    """Return the reply to one call. Raises the errors of errors.py."""
    try:
        with BlockingChannel(_addresses(broker)) as channel:
            return channel.call(method, request, timeout_s=_CALL_TIMEOUT_S)
    except (BrokerUnavailable, OutcomeUnknown) as exc:
        # A server has answered, so its text holds; only a call without any answer gets advice about addresses.
        if was_told(exc):
            raise
        raise BrokerUnavailable(
            f"no answer from a broker at {broker}{_origin()} ({exc.__cause__}): is `txmsg broker` running there, and "
            f"with TLS as the environment says (TXMSG_TLS_CA)? Name others with --broker, or in {BROKERS_VARIABLE}"
        ) from exc


def _addresses(broker: str) -> list[str]:
    try:
        return one_database_of(broker)
    except (InvalidName, MisuseError) as exc:
        raise type(exc)(f"{exc}{_origin()}") from exc


def _origin() -> str:
    """Return the source of the brokers' address, if it is not the command line."""
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source("broker")
    origins = {
        ParameterSource.ENVIRONMENT: f", as {BROKERS_VARIABLE} says",
        ParameterSource.DEFAULT_MAP: ", as the file of settings says",
        ParameterSource.DEFAULT: ", the default",
    }
    return origins.get(source, "") if source is not None else ""


def asker(broker: str) -> AskBroker:
    """Return a function that calls any broker of a database."""
    return functools.partial(ask_broker, broker)


def of_database(administration: Callable[[AskBroker], Any], argument: str) -> Decorator:
    """Add --broker and --storage; the command gets the administration of the named one, by this argument."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--storage",
            metavar="URL",
            envvar="TXMSG_STORAGE",
            show_envvar=True,
            help="Work directly on this Notify database, without a broker: for the first user, or if the last token "
            "is lost. Brokers that are named count more than the variable.",
        )
        @broker_option
        @functools.wraps(command)
        def with_administration(*, broker: str, storage: str | None, **others: Any) -> Any:
            # Brokers take precedence: they check the user's rights and note the change, which direct access does not.
            if storage is None or _names_brokers():
                return command(**{argument: administration(asker(broker))}, **others)
            from txmsg.ops.cli.access import asker_of_storage  # with txmsg[broker] only

            return command(**{argument: administration(asker_of_storage(storage))}, **others)

        return with_administration

    return decorated


database_option: Decorator = of_database(lambda ask: ask, "ask")
"""Add --broker and --storage; the command gets a function that asks the named one, as `ask`."""


def _names_brokers() -> bool:
    """Return True if brokers are named anywhere: they take precedence over a database that the environment names.

    Brokers identify the user, and note the change in the audit log. Raises UsageError if both are given.
    """
    context = click.get_current_context()
    broker, storage = (context.get_parameter_source(name) for name in ("broker", "storage"))
    if storage is not ParameterSource.COMMANDLINE:
        return broker is not ParameterSource.DEFAULT
    if broker is ParameterSource.COMMANDLINE:
        raise click.UsageError("--broker asks a broker, --storage works without one: give one of them")
    return False


def administered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --broker and --log; the command gets the administration of the named one as `administration`."""

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

    return broker_option(_log_instead(kafka_config_option(with_administration)))
