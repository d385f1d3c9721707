"""A copy of a log served by TLS to users: it follows while its user has permission."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metaq.copies import until_copied
from tests.metaq.logs import batch
from tests.metaq.servers import served
from tests.waiting import until
from tests.wire.certificates import Authority
from txmsg.errors import PermissionDenied, Unauthenticated
from txmsg.metaq.copy.follower import begin_if_new
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.remote.calls import RemoteServer
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.settings.common import TlsConfig
from txmsg.wire.access.file import entry_of
from txmsg.wire.access.tokens import new_token

TOKENS = {name: new_token() for name in ("producer", "copy")}
ALLOWED = 'copy = ["read cluster"]\n'


def write(file: Path, rules: str) -> None:
    users = "".join(f'[users.{name}]\ntokens = ["{entry_of(token)}"]\n' for name, token in TOKENS.items())
    new = file.with_suffix(".new")
    new.write_text(f'{users}[rules]\nproducer = ["send topic:*"]\n{rules}')
    new.replace(file)


def begin(leader: str, root: Path, token: str) -> None:
    server = RemoteServer(leader, token=token)
    try:
        begin_if_new(server, root)
    finally:
        server.close()


def test_copy_follows_over_tls_while_its_user_has_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority, file = Authority(tmp_path / "tls"), tmp_path / "access.toml"
    certificate, key = authority.issue("127.0.0.1")
    monkeypatch.setenv("TXMSG_TLS_CA", str(authority.file))
    monkeypatch.setenv("TXMSG_TOKEN", TOKENS["copy"].text)
    write(file, ALLOWED)
    leading = MetaQConfig(
        data_dir=tmp_path / "leader", listen="127.0.0.1:0", access=file, tls=TlsConfig(cert=certificate, key=key)
    )
    with served(leading) as leader, RemoteLog(leader, token=TOKENS["producer"].text) as log:
        log.append([batch("t", 0, 0, 3)])
        with pytest.raises(PermissionDenied, match="user producer may not read cluster"):
            begin(leader, tmp_path / "other", TOKENS["producer"].text)
        with pytest.raises(Unauthenticated):
            begin(leader, tmp_path / "other", new_token().text)
        following = MetaQConfig(data_dir=tmp_path / "copy", listen="127.0.0.1:0", follow=leader)
        with served(following):
            until_copied(tmp_path / "leader", tmp_path / "copy")
            write(file, "")
            until(lambda: "user copy may not read cluster" in caplog.text)
            log.append([batch("t", 0, 3, 2)])
            with LocalLog(tmp_path / "copy") as copy:
                assert copy.ranges([LogQueue("t", 0)])[LogQueue("t", 0)].end == 3
            write(file, ALLOWED)
            until_copied(tmp_path / "leader", tmp_path / "copy")
