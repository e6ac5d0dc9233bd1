"""The oldest schema whose programs this one still carries: one row, written by each upgrade."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    made = op.create_table(
        "schema_carries",
        sa.Column("oldest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("oldest"),
    )
    op.bulk_insert(made, [{"oldest": revision}])
