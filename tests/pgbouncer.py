"""A real PgBouncer between a test and a database."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.engine import make_url

from tests.ports import own_port
from tests.postgres_proxy import PostgresProxy
from tests.waiting import until

HOW_TO_INSTALL = "PgBouncer is not installed: `apt-get install --no-install-recommends pgbouncer` (Debian)"
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
_STOP_S_MAX = 60


def is_installed() -> bool:
    return shutil.which("pgbouncer", path=_PATH) is not None


@contextmanager
def pgbouncer(url: str, mode: str, **settings: str) -> Iterator[str]:
    """Yield a URL of the same database through a PgBouncer with this pool_mode and these settings.

    It reaches the server by a proxy of this process, for it runs as another user if this one is root.
    """
    program = shutil.which("pgbouncer", path=_PATH)
    assert program is not None, HOW_TO_INSTALL
    port = own_port()
    with TemporaryDirectory() as directory, PostgresProxy(url) as proxy:
        upstream = make_url(proxy.url)
        config, users, log = (Path(directory, name) for name in ("pgbouncer.ini", "users.txt", "log"))
        user = upstream.username or pwd.getpwuid(os.geteuid()).pw_name
        users.write_text(f'"{user}" "{upstream.password or ""}"\n')
        given = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "any" if upstream.password is None else "trust",
            "auth_file": str(users),
            "pool_mode": mode,
            **({"user": "nobody"} if os.geteuid() == 0 else {}),
            **settings,
        }
        server = f"host=127.0.0.1 port={upstream.port} user={user} dbname={upstream.database}"
        lines = ["[databases]", f"{upstream.database} = {server}", "[pgbouncer]"]
        config.write_text("\n".join([*lines, *(f"{name} = {value}" for name, value in given.items()), ""]))
        if os.geteuid() == 0:
            for path in (Path(directory), config, users):
                os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        with log.open("wb") as told:
            process = subprocess.Popen([program, str(config)], stdin=subprocess.DEVNULL, stdout=told, stderr=told)
        try:

            def is_up() -> bool:
                assert process.poll() is None, log.read_text()
                with closing(socket.socket()) as tried:
                    return tried.connect_ex(("127.0.0.1", port)) == 0

            until(is_up)
            yield upstream.set(port=port, username=user).render_as_string(hide_password=False)
        finally:
            process.terminate()  # newer ones wait for clients then
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
