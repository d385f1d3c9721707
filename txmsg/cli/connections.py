"""What commands talk to: a broker, by calls of its services, or a log."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import click
import grpc
from click.core import ParameterSource

from txmsg.administration.notify import NotifyAdministration
from txmsg.cli.options import Decorator
from txmsg.errors import BrokerUnavailable, TxmsgError
from txmsg.wire.address import check_address
from txmsg.wire.codec import CHANNEL_OPTIONS, error_of_rpc

_CALL_TIMEOUT_S = 10.0

_MODULES: Final = {
    "Admin": "txmsg_pb2_grpc",
    "Cluster": "cluster_pb2_grpc",
    "DeadLetters": "dead_letters_pb2_grpc",
    "Groups": "groups_pb2_grpc",
    "Messages": "messages_pb2_grpc",
    "Notify": "txmsg_pb2_grpc",
    "Topics": "topics_pb2_grpc",
}
"""Where the generated stub of each service is, in txmsg.wire.v1."""

broker_option: Decorator = click.option(
    "--broker",
    metavar="HOST:PORT",
    envvar="TXMSG_BROKER",
    show_envvar=True,
    default="localhost:7700",
    show_default=True,
    help="Any broker of the Notify database.",
)
log_option: Decorator = click.option(
    "--log",
    metavar="LOG",
    help="A MetaQ log instead of a Notify database: its directory, or the address of its server.",
)


def ask_broker(broker: str, method: str, request: object) -> Any:
    """The reply to one call, named SERVICE.METHOD. Raises the errors of errors.py."""
    address = check_address("--broker", broker)
    service, _, call_name = method.partition(".")
    stub_class = getattr(import_module(f"txmsg.wire.v1.{_MODULES[service]}"), f"{service}Stub")

    async def call() -> Any:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            return await getattr(stub_class(channel), call_name)(request, timeout=_CALL_TIMEOUT_S)

    try:
        return asyncio.run(call())
    except grpc.aio.AioRpcError as exc:
        error: TxmsgError = error_of_rpc(exc, broker=broker) or BrokerUnavailable(
            f"no answer from a broker at {broker} ({exc.code().name.lower()}): is `txmsg broker` running there? "
            "Name another one with --broker"
        )
        raise error from exc


def administered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --broker and --log; the command gets what they name as `administration`."""

    @functools.wraps(command)
    def with_administration(*, broker: str, log: str | None, **others: Any) -> Any:
        if log is None:
            return command(administration=NotifyAdministration(functools.partial(ask_broker, broker)), **others)
        if click.get_current_context().get_parameter_source("broker") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--broker is for groups of Notify, --log for those of a log: give one of them")
        from txmsg.administration.log import LogAdministration  # with txmsg[metaq] only
        from txmsg.metaq.location import open_log

        with open_log(log) as access:
            return command(administration=LogAdministration(access), **others)

    return broker_option(log_option(with_administration))
