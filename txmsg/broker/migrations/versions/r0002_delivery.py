"""Order, delays, groups with settings of their own, and a cluster of brokers. Adds only."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"
_PARTS = (
    "tables",
    "cursors",
    "incarnation",
    "levels",
    "memory",
    "batch",
    "batch_calls",
    "schedule",
    "offsets",
    "mirrors",
    "collations",
)


def upgrade() -> None:
    for part in _PARTS:
        # The driver's own cursor: SQLAlchemy would read the colons and percent signs of the functions as parameters.
        statements = (_SQL / f"0002_{part}.sql").read_text(encoding="utf-8")
        op.get_bind().exec_driver_sql(statements.replace("%", "%%"))


def downgrade() -> None:
    raise NotImplementedError("a Notify database is not downgraded: restore a backup taken before the upgrade")
