"""Batches and their items."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    _batches()
    _items()


def _batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("window_s", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("touched_at", sa.Double(), nullable=False),
        sa.Column("released_at", sa.Double(), nullable=True),
        sa.Column("stopping_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("cost_usd_max", sa.Double(), nullable=True),
        sa.Column("concurrency_max", sa.Integer(), nullable=True),
        sa.Column("spent_usd", sa.Double(), nullable=False),
        sa.Column("account_faults", sa.Integer(), nullable=False),
        sa.Column("paused", sa.Text(), nullable=False),
        sa.Column("resumes", sa.Integer(), nullable=False),
        sa.Column("upload_token", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("faults", sa.Text(), nullable=False),
        sa.Column("ignored", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    keyed = sa.text("idempotency_key IS NOT NULL")
    op.create_index(
        "ix_batches_key",
        "batches",
        ["tenant", "idempotency_key"],
        unique=True,
        sqlite_where=keyed,
        postgresql_where=keyed,
    )
    op.create_index("ix_batches_tenant", "batches", ["tenant", "id"])
    open_ = sa.text("ended_at IS NULL")
    op.create_index("ix_batches_open", "batches", ["id"], sqlite_where=open_, postgresql_where=open_)


def _items() -> None:
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("reserved_usd", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        *(
            sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False)
            for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
        ),
        sa.Column("model_calls", sa.Integer(), nullable=False),
        sa.Column("tool_calls", sa.Integer(), nullable=False),
        *(
            sa.Column(name, sa.Double(), nullable=False)
            for name in ("cost_usd", "model_s", "tool_s", "queue_s", "wait_s")
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"]),
        sa.PrimaryKeyConstraint("batch_id", "line"),
    )
    op.create_index("ix_batch_items_custom_id", "batch_items", ["batch_id", "custom_id"], unique=True)
    for name in ("pending", "running"):
        where = sa.text(f"status = '{name}'")
        op.create_index(
            f"ix_batch_items_{name}",
            "batch_items",
            ["batch_id", "line"],
            sqlite_where=where,
            postgresql_where=where,
        )
    with_run = sa.text("run_id IS NOT NULL")
    op.create_index(
        "ix_batch_items_run", "batch_items", ["run_id"], sqlite_where=with_run, postgresql_where=with_run
    )
    op.create_table(
        "batch_inputs",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"]),
        sa.PrimaryKeyConstraint("batch_id", "line"),
    )
