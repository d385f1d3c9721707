"""The Notify database: topics, half messages, messages in segments, delivery state, and the batch function."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql" / revision
_PARTS = (
    "database",
    "incarnation",
    "topics",
    "erasure",
    "halves",
    "messages",
    "journal",
    "memory",
    "segments",
    "levels",
    "batch",
    "schedule",
    "groups",
    "offsets",
    "mirrors",
    "brokers",
    "settings",
    "alerts",
    "audit",
    "access",
    "catalogue",
)


def upgrade() -> None:
    for part in _PARTS:
        # The driver's own cursor: SQLAlchemy would read the colons and percent signs of the functions as parameters.
        statements = (_SQL / f"{part}.sql").read_text(encoding="utf-8")
        op.get_bind().exec_driver_sql(statements.replace("%", "%%"))


def downgrade() -> None:
    raise NotImplementedError("a Notify database is not downgraded: restore a backup taken before the upgrade")
