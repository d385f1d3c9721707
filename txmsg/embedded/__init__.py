"""A private PostgreSQL for development, tests and the demo. Owns one data directory; knows nothing of txmsg's schema.

    with EmbeddedPostgres() as postgres:
        print(postgres.url())

Who runs what. Each process that uses the server holds a shared lock on `users.lock`. A *keeper*, a small process
that belongs to nobody (`python -m txmsg.embedded.keeper DIR`), starts PostgreSQL, tries to take the same lock
exclusively, and stops PostgreSQL as soon as it succeeds. The kernel drops the lock of a process that ends in any way,
SIGKILL included, so there are no counters to repair, no signal handlers and no exit hooks.

    DIR/start.lock    exclusive while somebody looks whether a keeper is there, and starts one
    DIR/users.lock    shared by each user; exclusive by a keeper that is stopping
    DIR/keeper.lock   exclusive by the keeper, from before PostgreSQL starts until after it ended
    DIR/cluster/      the PostgreSQL data directory
    DIR/socket/       the unix socket; in /tmp/txmsg-<hash of DIR> when DIR is too long for the name of a socket
    DIR/postgres.log  the server's log, renamed to postgres.log.1 at a start that finds it over 8 MiB

Only a unix socket is opened, in a directory that only its owner (and root) may enter: nobody else on the machine can
connect, so no password is needed.

PostgreSQL refuses to run as root. A keeper started by root therefore becomes the owner of the cluster, else `nobody`,
and keeps one capability, that of passing through directories: so a clone or a home closed to others (/root) works
as it is, without changing the permissions of anything.
"""

from txmsg.embedded.cluster import binaries_dir
from txmsg.embedded.place import default_data_dir
from txmsg.embedded.postgres import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "binaries_dir", "default_data_dir"]
