"""The Notify database: topics, half messages, messages in segments, delivery state, and the batch function."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent.parent / "sql"


def upgrade() -> None:
    for name in ("0001_tables.sql", "0001_functions.sql"):
        # The driver's own cursor: SQLAlchemy would read the colons and percent signs of the functions as parameters.
        op.get_bind().exec_driver_sql((_SQL / name).read_text(encoding="utf-8").replace("%", "%%"))


def downgrade() -> None:
    raise NotImplementedError("the first revision is not undone: drop the schema txmsg to lose all messages")
