"""The tables of batches, as the newest migration leaves them; conventions as in `tables.py`.

An item has no foreign key to its run: runs are purged sooner than the batch that says what became of its lines.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from toolfleet.adapters.store.tables import metadata


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _whole(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger().with_variant(Integer, "sqlite"), nullable=False)


def _real(name: str) -> Column[float]:
    return Column(name, Double, nullable=False)


batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    _text("tenant"),
    _text("status"),
    _text("endpoint"),
    _real("window_s"),
    _real("created_at"),
    _real("expires_at"),
    _real("touched_at"),  # when its upload was written to last
    Column("released_at", Double),
    Column("stopping_at", Double),
    Column("ended_at", Double),
    Column("cost_usd_max", Double),
    Column("concurrency_max", Integer),
    _real("spent_usd"),  # of items that ended, all tries
    _whole("account_faults"),  # items in a row that failed by the model's account
    _text("paused"),
    _whole("resumes"),
    _text("upload_token"),  # of whoever stores its lines: an upload that was taken over writes nothing more
    Column("idempotency_key", Text),
    _text("content_hash"),
    _text("file_name"),
    _text("created_by"),
    _text("metadata"),
    _text("faults"),
    _text("ignored"),
    Index(
        "ix_batches_key",
        "tenant",
        "idempotency_key",
        unique=True,
        sqlite_where=text("idempotency_key IS NOT NULL"),
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index("ix_batches_tenant", "tenant", "id"),
    Index(
        "ix_batches_open",
        "id",
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
)

batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", Text, ForeignKey("batches.id"), nullable=False),
    _whole("line"),
    _text("custom_id"),
    _text("tenant"),
    _text("agent"),
    _text("status"),
    Column("code", Text),
    Column("run_id", Text),
    _whole("tries"),
    _real("reserved_usd"),  # what its run may cost, while it runs
    Column("started_at", Double),
    Column("ended_at", Double),
    _count("input_tokens"),
    _count("output_tokens"),
    _count("cached_tokens"),
    _count("reasoning_tokens"),
    _whole("model_calls"),
    _whole("tool_calls"),
    _real("cost_usd"),  # and what stands before it: of all its tries
    _real("model_s"),
    _real("tool_s"),
    _real("queue_s"),
    _real("wait_s"),
    PrimaryKeyConstraint("batch_id", "line"),
    Index("ix_batch_items_custom_id", "batch_id", "custom_id", unique=True),
    Index(
        "ix_batch_items_pending",
        "batch_id",
        "line",
        sqlite_where=text("status = 'pending'"),
        postgresql_where=text("status = 'pending'"),
    ),
    Index(
        "ix_batch_items_running",
        "batch_id",
        "line",
        sqlite_where=text("status = 'running'"),
        postgresql_where=text("status = 'running'"),
    ),
    Index(
        "ix_batch_items_run",
        "run_id",
        sqlite_where=text("run_id IS NOT NULL"),
        postgresql_where=text("run_id IS NOT NULL"),
    ),
)

# Beside the item, which is written again at each step: a request may be large, and never changes.
batch_inputs = Table(
    "batch_inputs",
    metadata,
    Column("batch_id", Text, ForeignKey("batches.id"), nullable=False),
    _whole("line"),
    _text("request"),
    PrimaryKeyConstraint("batch_id", "line"),
)
