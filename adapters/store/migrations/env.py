"""Alembic's entry. The connection, inside a transaction, comes from `migrate.upgrade`, never from a configuration file."""

from __future__ import annotations

from alembic import context

from toolfleet.adapters.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # on SQLite too: our connections begin their transactions themselves
)
with context.begin_transaction():
    context.run_migrations()
