"""What an approval grants beside its yes: permissions, for one call."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("approvals", sa.Column("permissions", sa.Text(), nullable=False, server_default="[]"))
