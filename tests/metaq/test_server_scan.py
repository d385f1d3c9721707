"""Every method of a MetaQ server with users in a file, called by each kind of caller that must be refused.

`tests/integration/test_permissions.py` does the same for brokers, and for a MetaQ server that has its users from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.test_permissions import ALL_RIGHTS, OTHER, asking
from tests.metaq.servers import WAIT_S, served
from tests.unit.test_permissions import METHODS
from txmsg.errors import TxmsgError
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.wire.access.file import entry_of
from txmsg.wire.access.permissions import PERMISSIONS
from txmsg.wire.access.rules import ResourceKind
from txmsg.wire.access.tokens import new_token
from txmsg.wire.blocking import BlockingChannel

OF_LOG = sorted(method for method in METHODS if method.startswith("MetaQ"))
TOKENS = {name: new_token() for name in ("bare", OTHER, "ops")}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("scan")
    users = [f'[users.{name}]\ntokens = ["{entry_of(token)}"]\n' for name, token in TOKENS.items()]
    users[-1] += 'roles = ["admin"]\n'
    rules = [f"{action} {kind}:{OTHER}*" for action, kind in ALL_RIGHTS]
    file = directory / "access.toml"
    file.write_text(f"{''.join(users)}[rules]\n{OTHER} = {rules!r}\n")
    with served(MetaQConfig(data_dir=directory / "log", listen="127.0.0.1:0", access=file)) as address:
        yield address


@pytest.fixture
def code(address: str) -> Iterator[Any]:
    """A function that makes a call naming `mine` and returns its error code; "" if it succeeds."""
    with ExitStack() as stack:

        def of(token: str, method: str) -> str:
            channel = stack.enter_context(BlockingChannel(address, token=token, tls=False))
            found, request = METHODS[method], asking(method)
            try:
                if found.gives_data:
                    list(channel.replies_with_data(found, request, timeout_s=WAIT_S))
                elif found.gives_many:
                    next(iter(channel.replies(found, [request], timeout_s=WAIT_S)), None)
                else:
                    channel.call(found, request, timeout_s=WAIT_S)
            except TxmsgError as exc:
                return exc.code
            return ""

        yield of


def test_all_rpc_methods_of_a_log_are_discovered() -> None:
    assert len(OF_LOG) > 15


@pytest.mark.parametrize("method", OF_LOG)
def test_each_method_is_refused_without_valid_credentials(method: str, code: Any) -> None:
    needs = PERMISSIONS[method]
    is_named = any(not need.optional and (bool(need.path) or need.right.kind is ResourceKind.CLUSTER) for need in needs)
    assert code("", method) == "unauthenticated"
    assert code(new_token().text, method) == "unauthenticated"
    assert (code(TOKENS["bare"].text, method) == "permission_denied") == any(not need.optional for need in needs)
    assert (code(TOKENS[OTHER].text, method) == "permission_denied") == is_named
    assert code(TOKENS["ops"].text, method) not in {"permission_denied", "unauthenticated"}
