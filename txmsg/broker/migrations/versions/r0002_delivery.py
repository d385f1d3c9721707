"""Order, delays, groups with settings of their own, and a cluster of brokers. Adds only."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    for name in ("0002_tables.sql", "0002_levels.sql", "0002_functions.sql"):
        # The driver's own cursor: SQLAlchemy would read the colons and percent signs of the functions as parameters.
        op.get_bind().exec_driver_sql((_SQL / name).read_text(encoding="utf-8").replace("%", "%%"))


def downgrade() -> None:
    raise NotImplementedError("a Notify database is not downgraded: restore a backup taken before the upgrade")
