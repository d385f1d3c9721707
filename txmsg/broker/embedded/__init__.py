"""A private PostgreSQL for development, tests and the demo. Owns one data directory; knows nothing of txmsg's schema.

    with EmbeddedPostgres() as postgres:
        print(postgres.url())

Each process that uses the server holds a shared lock on `users.lock`. A *keeper*, a small process without an owner
(`python -m txmsg.broker.embedded.keeper DIR`), starts PostgreSQL, tries to take the same lock exclusively, and stops
PostgreSQL as soon as it succeeds. The kernel drops the lock of a process that ends in any way, SIGKILL included, so no
counters need repair, and neither signal handlers nor exit hooks are needed. When a server ends while it is used, its
keeper ends too; each user that is `watched` notices that, and the first one starts both again.

    DIR/start.lock    exclusive while a process looks for the keeper, and starts one
    DIR/users.lock    shared by each user; exclusive by a keeper that is stopping
    DIR/keeper.lock   exclusive by the keeper, from before PostgreSQL starts until after it ended
    DIR/cluster/      the PostgreSQL data directory
    DIR/socket/       the unix socket; in /tmp/txmsg-<hash of DIR> (where /tmp cannot be written,
                      in /dev/shm or /var/tmp) when DIR is too long for the name of a socket; in
                      /run/txmsg-<hash of DIR> when another user runs the server for root
    DIR/postgres.log  the server's log, renamed to postgres.log.1 at a start that finds it over 8 MiB

Only a unix socket is opened, in a directory that only its owner (and root) may enter, and the server asks the kernel
who connects: no other user of the machine can, so no password is needed. Lines of your own, as for a standby or TCP,
belong in DIR/cluster/pg_hba_own.conf.

PostgreSQL refuses to run as root. Started by root, its programs run as the owner of the cluster, else as a user that
nothing else has (decision 99), without any capability. A clone or a home closed to others (/root) works as it
is: no permission is changed. PostgreSQL is told its working directory in place of a path. Files that must be reached by
a path are elsewhere: the socket in /run, and a copy of the programs in /var/cache/txmsg where those of the wheel are
out of reach. The server's user could replace any file of the cluster by a link: root uses none of its paths.
"""

from typing import TYPE_CHECKING

from txmsg.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from txmsg.broker.embedded.postgres import EmbeddedPostgres
else:
    __getattr__, __dir__ = lazy_names(__name__, {"EmbeddedPostgres": "txmsg.broker.embedded.postgres"})

__all__ = ["EmbeddedPostgres"]
