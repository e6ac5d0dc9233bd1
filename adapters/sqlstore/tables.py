"""The tables. One line of truth each: docs/flow.md says which transaction writes which.

`commands` is outbox, due-table, lease and healer; `results` holds the first outcome of each call; `items` is
append-only. Times are seconds since the epoch, by the database's clock.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)
_ENDED = "'completed', 'needs_input', 'limit_reached', 'denied', 'failed', 'cancelled'"
_OVERDUE = f"deadline_at IS NOT NULL AND NOT (status IN ({_ENDED}))"

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("tenant", String(128), nullable=False),
    Column("agent", String(128), nullable=False),
    Column("agent_version", String(32), nullable=False),
    Column("prompt_version", String(32), nullable=False),
    Column("toolset_version", String(32), nullable=False),
    Column("lane", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("reason", String(64)),
    Column("turn", Integer, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("input", Text, nullable=False),
    Column("output", Text),
    Column("previous_run_id", String(64)),
    Column("retry_of", String(64)),
    Column("idempotency_key", String(256)),
    Column("request_hash", String(64), nullable=False),
    Column("correlation_id", String(128), nullable=False),
    Column("context", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("trace", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("deadline_at", Double),
    Column("model_calls", Integer, nullable=False),
    Column("tool_calls", Integer, nullable=False),
    Column("corrections", Integer, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("cost_usd", Double, nullable=False),
    Column("model_s", Double, nullable=False),
    Column("tool_s", Double, nullable=False),
    Column("queue_s", Double, nullable=False),
    Column("state", Text, nullable=False),
    UniqueConstraint("tenant", "idempotency_key"),
    Index(
        "ix_runs_open_deadline",
        "deadline_at",
        sqlite_where=text(_OVERDUE),
        postgresql_where=text(_OVERDUE),
    ),
    Index("ix_runs_previous_run_id", "previous_run_id"),
    Index("ix_runs_status_run_id", "status", "run_id"),
)

turns = Table(
    "turns",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("turn", Integer, primary_key=True),
    Column("phase", String(16), nullable=False),
    Column("calls", Integer, nullable=False),
    Column("changed_at", Double, nullable=False),
)

calls = Table(
    "calls",
    metadata,
    Column("call_id", String(160), primary_key=True),
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("index", Integer, nullable=False),
    Column("tool", String(64), nullable=False),
    Column("tier", String(16), nullable=False),
    Column("arguments", Text, nullable=False),
    Column("signature", String(64), nullable=False),
    Column("wire_id", String(128), nullable=False),
    Column("effect", Boolean, nullable=False),
    Column("idempotent", Boolean, nullable=False),
    Column("attempts_max", Integer, nullable=False),
    Column("timeout_s", Double, nullable=False),
    Column("waiting", String(32), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("dispatched", Boolean, nullable=False),
    Column("outcome", String(32)),
    Column("repaired", Boolean, nullable=False),
    Column("tell_on_denied", Boolean, nullable=False),
    Column("repeatable", Boolean, nullable=False),
    UniqueConstraint("run_id", "turn", "index"),
)

results = Table(
    "results",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("turn", Integer, primary_key=True),
    Column("call_id", String(160), primary_key=True),
    Column("index", Integer, nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("content", Text, nullable=False),
    Column("reason", String(64)),
    Column("attempt", Integer, nullable=False),
    Column("full", Text),
    Column("tool_s", Double, nullable=False),
    Column("queue_s", Double, nullable=False),
    Column("at", Double, nullable=False),
)

items = Table(
    "items",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("turn", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("body", Text, nullable=False),
    Column("at", Double, nullable=False),
)

commands = Table(
    "commands",
    metadata,
    Column("id", String(160), primary_key=True),
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("call_id", String(160)),
    Column("queue", String(64), nullable=False),
    Column("due_at", Double, nullable=False),
    Column("sent_at", Double),
    Column("sends", Integer, nullable=False),
    Column("lost_after_s", Double, nullable=False),
    Column("deaths", Integer, nullable=False),
    Column("owner", String(255)),
    Column("token", String(64)),
    Column("lease_until", Double),
    Index(
        "ix_commands_due",
        "due_at",
        sqlite_where=text("token IS NULL"),
        postgresql_where=text("token IS NULL"),
    ),
    Index(
        "ix_commands_leased",
        "lease_until",
        sqlite_where=text("token IS NOT NULL"),
        postgresql_where=text("token IS NOT NULL"),
    ),
    Index("ix_commands_run_id", "run_id"),
)

usage = Table(
    "usage",
    metadata,
    Column("token", String(64), primary_key=True),
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("model", String(255), nullable=False),
    Column("reserved_usd", Double, nullable=False),
    Column("cost_usd", Double, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("reasoning_tokens", Integer, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_usage_run_id", "run_id"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("call_id", String(160)),
    Column("tool_name", String(64)),
    Column("attempt", Integer, nullable=False),
    Column("fields", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_steps_run_id", "run_id"),
)

events = Table(
    "events",
    metadata,
    Column("run_id", String(64), ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("type", String(64), nullable=False),
    Column("data", Text, nullable=False),
    Column("at", Double, nullable=False),
)

dead = Table(
    "dead",
    metadata,
    Column("id", String(160), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("queue", String(64), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("at", Double, nullable=False),
    Column("run_id", String(64)),
    Column("turn", Integer),
    Column("call_id", String(160)),
    Column("body", LargeBinary),
    Column("detail", Text, nullable=False),
)

agents = Table(
    "agents",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("version", String(32), primary_key=True),
    Column("definition", Text, nullable=False),
    Column("registered_at", Double, nullable=False),
)

brokers = Table(
    "brokers",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("marker", String(64), nullable=False),
    Column("reset_at", Double),
)
