"""Runs by the time they ended, for a purge. Only adds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    ended = sa.text("finished_at IS NOT NULL")
    op.create_index("ix_runs_finished", "runs", ["finished_at"], sqlite_where=ended, postgresql_where=ended)
