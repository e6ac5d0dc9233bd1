"""Keys are more than approvers, quotas of tenants, answers to requests that may be sent again; indexes by tenant.

Only adds, so that programs of the release before go on beside this one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("approvers", sa.Column("shown", sa.Text(), nullable=False, server_default=""))
    op.add_column("approvers", sa.Column("expires_at", sa.Double(), nullable=True))
    op.add_column("approvers", sa.Column("replaces", sa.Text(), nullable=True))
    op.create_table(
        "quotas",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("runs_in_flight_max", sa.Integer(), nullable=True),
        sa.Column("requests_per_minute_max", sa.Integer(), nullable=True),
        sa.Column("cost_usd_per_day_max", sa.Double(), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant"),
    )
    op.create_table(
        "replays",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "route", "key"),
    )
    op.create_index("ix_replays_at", "replays", ["at"])
    op.create_index("ix_runs_tenant", "runs", ["tenant", "id"])
    open_ = sa.text("finished_at IS NULL")
    op.create_index("ix_runs_in_flight", "runs", ["tenant"], sqlite_where=open_, postgresql_where=open_)
    op.create_index("ix_usage_tenant", "usage", ["tenant", "at"])
