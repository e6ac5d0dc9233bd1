"""Runs migrations on the connection it is given; `migrate.upgrade` is the only caller."""

from alembic import context

from toolfleet.adapters.sqlstore.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True
)
with context.begin_transaction():
    context.run_migrations()
