"""Run by Alembic; the connection is handed over by `txmsg.broker.migrate`."""

from alembic import context

from txmsg.broker.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="revision",
    version_table_schema="txmsg",
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
