"""The time of a call over all its attempts, and when it is over. Only adds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("calls", sa.Column("call_timeout_s", sa.Double(), nullable=True))
    op.add_column("calls", sa.Column("deadline_at", sa.Double(), nullable=True))
