"""The tables of batches, as the newest migration leaves them; conventions as in `tables.py`.

An item has no foreign key to its run: runs are purged sooner than the batch that says what became of its lines.
"""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)

from toolfleet.adapters.store.columns import count, partial, real, text_, whole
from toolfleet.adapters.store.tables import metadata

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    text_("tenant"),
    text_("status"),
    text_("endpoint"),
    real("window_s"),
    real("created_at"),
    real("expires_at"),
    real("touched_at"),  # when its upload was written to last
    Column("released_at", Double),
    Column("stopping_at", Double),
    Column("ended_at", Double),
    Column("cost_usd_max", Double),
    Column("concurrency_max", Integer),
    real("spent_usd"),  # of items that ended, all tries
    whole("account_faults"),  # items in a row that failed by the model's account
    text_("paused"),
    whole("resumes"),
    text_("upload_token"),  # of whoever stores its lines: an upload that was taken over writes nothing more
    Column("idempotency_key", Text),
    text_("content_hash"),
    text_("file_name"),
    text_("created_by"),
    text_("metadata"),
    text_("faults"),
    text_("ignored"),
    partial(
        "ix_batches_key",
        "tenant",
        "idempotency_key",
        unique=True,
        where="idempotency_key IS NOT NULL",
    ),
    Index("ix_batches_tenant", "tenant", "id"),
    partial(
        "ix_batches_open",
        "id",
        where="ended_at IS NULL",
    ),
)

batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", Text, ForeignKey("batches.id"), nullable=False),
    whole("line"),
    text_("custom_id"),
    text_("tenant"),
    text_("agent"),
    text_("status"),
    Column("code", Text),
    Column("run_id", Text),
    whole("tries"),
    real("reserved_usd"),  # what its run may cost, while it runs
    Column("started_at", Double),
    Column("ended_at", Double),
    count("input_tokens"),
    count("output_tokens"),
    count("cached_tokens"),
    count("reasoning_tokens"),
    whole("model_calls"),
    whole("tool_calls"),
    real("cost_usd"),  # and what stands before it: of all its tries
    real("model_s"),
    real("tool_s"),
    real("queue_s"),
    real("wait_s"),
    PrimaryKeyConstraint("batch_id", "line"),
    Index("ix_batch_items_custom_id", "batch_id", "custom_id", unique=True),
    partial(
        "ix_batch_items_pending",
        "batch_id",
        "line",
        where="status = 'pending'",
    ),
    partial(
        "ix_batch_items_running",
        "batch_id",
        "line",
        where="status = 'running'",
    ),
    partial(
        "ix_batch_items_run",
        "run_id",
        where="run_id IS NOT NULL",
    ),
)

# Beside the item, which is written again at each step: a request may be large, and never changes.
batch_inputs = Table(
    "batch_inputs",
    metadata,
    Column("batch_id", Text, ForeignKey("batches.id"), nullable=False),
    whole("line"),
    text_("request"),
    PrimaryKeyConstraint("batch_id", "line"),
)
