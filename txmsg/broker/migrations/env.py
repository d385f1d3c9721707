"""Run by Alembic; the connection is handed over by `txmsg.broker.migrate`."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="revision",
    version_table_schema="txmsg",
)
with context.begin_transaction():
    context.run_migrations()
