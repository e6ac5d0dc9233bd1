"""The tables, as the newest migration leaves them (a test compares the two).

Conventions: times are seconds since the epoch (double), by the database's clock. JSON is text, stored as it was
written: byte for byte the same on both databases, and no column of it is ever searched. What reports and sweeps need
is a real column. `runs` is the row that every transition rewrites, so what never changes and may be large lives in
`run_inputs`. Children of a run carry no tenant: they are reached through their run; rows that reports read alone do.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    false,
    text,
)

metadata = MetaData()


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _whole(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _count(name: str) -> Column[int]:
    """As many as a provider says: its numbers are not ours to trust, and PostgreSQL refuses what is too large."""
    return Column(name, BigInteger().with_variant(Integer, "sqlite"), nullable=False)


def _real(name: str) -> Column[float]:
    return Column(name, Double, nullable=False)


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def _empty(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default="")


def _of_run() -> Column[str]:
    return Column("run_id", Text, ForeignKey("runs.id"), nullable=False)


runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    _text("tenant"),
    _text("agent"),
    _text("agent_version"),
    _text("lane"),
    Column("previous_run_id", Text, ForeignKey("runs.id")),
    Column("idempotency_key", Text),
    _real("created_at"),
    Column("deadline_at", Double),
    _text("status"),
    Column("reason", Text),
    _whole("turn"),
    _text("phase"),
    Column("finished_at", Double),
    _whole("model_calls"),
    _whole("tool_calls"),
    _whole("corrections"),
    _count("input_tokens"),
    _count("output_tokens"),
    _count("cached_tokens"),
    _count("reasoning_tokens"),
    _real("cost_usd"),
    _real("active_s"),
    _real("model_s"),
    _real("tool_s"),
    _real("queue_s"),
    _text("signatures"),  # the repeat window, [[signature, call_id, turn, read_only, ok], ...]
    _text("state"),  # the rest of RunState, JSON
    Index(
        "ix_runs_idempotency",
        "tenant",
        "idempotency_key",
        unique=True,
        sqlite_where=text("idempotency_key IS NOT NULL"),
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index(
        "ix_runs_deadline",
        "deadline_at",
        sqlite_where=text("deadline_at IS NOT NULL AND finished_at IS NULL"),
        postgresql_where=text("deadline_at IS NOT NULL AND finished_at IS NULL"),
    ),
    Index(
        "ix_runs_previous",
        "previous_run_id",
        sqlite_where=text("previous_run_id IS NOT NULL"),
        postgresql_where=text("previous_run_id IS NOT NULL"),
    ),
    Index(
        "ix_runs_finished",
        "finished_at",
        sqlite_where=text("finished_at IS NOT NULL"),
        postgresql_where=text("finished_at IS NOT NULL"),
    ),
    Index("ix_runs_status", "status", "id"),
    Index("ix_runs_agent", "agent", "id"),
    Index("ix_runs_tenant", "tenant", "id"),
    Index(
        "ix_runs_in_flight",
        "tenant",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
)

run_inputs = Table(
    "run_inputs",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    _text("prompt_version"),
    _text("toolset_version"),
    Column("retry_of", Text),
    _text("request_hash"),
    _text("correlation_id"),
    _text("limits"),
    _text("trace"),
    _text("metadata"),
    _text("context"),
    _text("input"),
    _empty("principal"),
    Column("permissions", Text, nullable=False, server_default="[]"),
    _empty("effect_scope"),
)

turns = Table(
    "turns",
    metadata,
    _of_run(),
    _whole("turn"),
    _text("phase"),
    _real("started_at"),
    Column("merged_at", Double),
    Column("ended_at", Double),
    PrimaryKeyConstraint("run_id", "turn"),
    sqlite_with_rowid=False,
)

calls = Table(
    "calls",
    metadata,
    _of_run(),
    _whole("turn"),
    _whole("position"),  # in call order, from 0
    _text("call_id"),
    _text("tool"),
    _text("tier"),
    _text("signature"),
    _text("wire_id"),
    _flag("effect"),
    _flag("idempotent"),
    _flag("repaired"),
    _flag("tell_on_denied"),
    _flag("repeatable"),
    _whole("attempts_max"),
    _real("timeout_s"),
    _text("waiting"),
    _whole("attempt"),
    Column("outcome", Text),  # set in the transaction that stores the result
    _text("arguments"),
    _empty("terms"),  # Terms as JSON; empty: none
    _empty("waits_key"),  # the effect key it waits for
    Column("edited", Boolean, nullable=False, server_default=false()),
    PrimaryKeyConstraint("run_id", "turn", "position"),
    Index(
        "ix_calls_waits_key",
        "waits_key",
        sqlite_where=text("waits_key <> ''"),
        postgresql_where=text("waits_key <> ''"),
    ),
    sqlite_with_rowid=False,
)

results = Table(
    "results",
    metadata,
    _of_run(),
    _whole("turn"),
    _text("call_id"),
    _whole("position"),
    _text("outcome"),
    Column("reason", Text),
    _whole("attempt"),
    _real("tool_s"),
    _real("queue_s"),
    _real("stored_at"),
    _text("content"),
    Column("full_text", Text),
    PrimaryKeyConstraint("run_id", "turn", "call_id"),  # the first terminal outcome wins
)

items = Table(
    "items",
    metadata,
    _of_run(),
    _whole("seq"),
    _whole("turn"),
    _text("kind"),
    _text("body"),
    PrimaryKeyConstraint("run_id", "seq"),
)

commands = Table(
    "commands",
    metadata,
    Column("id", Text, primary_key=True),
    _of_run(),
    _whole("turn"),
    Column("call_id", Text),
    _text("queue"),
    _real("due_at"),
    Column("sent_at", Double),
    _whole("sends"),
    _real("lost_after_s"),
    _real("check_at"),  # from when on the keeper thinks that it was never sent, or lost (rules.check_at)
    _whole("deaths"),
    Column("owner", Text),
    Column("token", Text),
    Column("lease_until", Double),
    _text("body"),  # {"trace": {...}}
    Index("ix_commands_run", "run_id"),
    Index(
        "ix_commands_check",
        "check_at",
        sqlite_where=text("token IS NULL"),
        postgresql_where=text("token IS NULL"),
    ),
    Index(
        "ix_commands_sent",
        "sent_at",
        sqlite_where=text("token IS NULL"),
        postgresql_where=text("token IS NULL"),
    ),
    Index(
        "ix_commands_lease",
        "lease_until",
        sqlite_where=text("token IS NOT NULL"),
        postgresql_where=text("token IS NOT NULL"),
    ),
    sqlite_with_rowid=False,
)

usage = Table(
    "usage",
    metadata,
    Column("token", Text, primary_key=True),  # of the decide lease: names one model call
    _of_run(),
    _text("tenant"),
    _whole("turn"),
    _whole("attempt"),
    _text("model"),
    _text("status"),  # reserved | replied | failed
    _real("reserved_usd"),
    _count("input_tokens"),
    _count("output_tokens"),
    _count("cached_tokens"),
    _count("reasoning_tokens"),
    _real("cost_usd"),
    _real("at"),
    Column("closed_at", Double),
    Index("ix_usage_run", "run_id"),
    Index("ix_usage_tenant", "tenant", "at"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _of_run(),
    _text("tenant"),
    _whole("turn"),
    _text("kind"),
    _text("outcome"),
    Column("call_id", Text),
    Column("tool_name", Text),
    _whole("attempt"),
    _real("at"),
    _text("fields"),
    Index("ix_steps_run", "run_id", "id"),
)

events = Table(
    "events",
    metadata,
    _of_run(),
    _whole("seq"),
    _text("type"),
    _real("at"),
    _text("data"),
    PrimaryKeyConstraint("run_id", "seq"),
    sqlite_with_rowid=False,
)

dead = Table(
    "dead",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text),  # of the run; nothing is known of a message that cannot be trusted
    _text("kind"),
    _text("queue"),
    _text("reason"),
    _real("at"),
    Column("run_id", Text),
    Column("turn", Integer),
    Column("call_id", Text),
    Column("body", LargeBinary),
    _text("detail"),
    Index("ix_dead_at", "at", "id"),
)

agents = Table(
    "agents",
    metadata,
    _text("name"),
    _text("version"),
    _whole("rank"),  # the highest of a name is the one registered last
    _real("registered_at"),
    _text("spec"),
    PrimaryKeyConstraint("name", "version"),
)

# One row: the oldest revision whose programs can work with this schema (adapters/store/migrate.py).
schema_carries = Table("schema_carries", metadata, Column("oldest", Text, primary_key=True))

brokers = Table(
    "brokers",
    metadata,
    Column("name", Text, primary_key=True),
    _text("marker"),
    Column("reset_at", Double),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    _text("host"),
    _whole("pid"),
    _text("roles"),
    _text("version"),
    _real("started_at"),
    _real("seen_at"),
    _text("state"),
)

cached_results = Table(
    "cached_results",
    metadata,
    Column("key", Text, primary_key=True),  # of tenant, tool, its version, arguments and what else decides
    _text("tenant"),
    _text("tool"),
    _text("body"),
    _real("stored_at"),
    _real("expires_at"),
    Index("ix_cached_results_expires", "expires_at"),
)

# One row for each call with an effect, from its first claim on. The index is the last word about who holds a key.
effects = Table(
    "effects",
    metadata,
    Column("call_id", Text, primary_key=True),
    _of_run(),
    _whole("turn"),
    _text("tenant"),
    _text("tool"),
    _text("tier"),
    _text("key"),
    _text("state"),
    _whole("attempt"),
    _real("send_by"),
    _real("asked_at"),
    _whole("tries"),
    _flag("doubt"),
    Column("approval_id", Text),
    _real("opened_at"),
    _real("changed_at"),
    Column("resolved_by", Text),
    Column("answer", Text),  # JSON, as an operator gave it
    Index("ix_effects_run", "run_id", "turn"),
    Index("ix_effects_state", "state", "changed_at"),
    Index(
        "ix_effects_held",
        "key",
        unique=True,
        sqlite_where=text("state IN ('dispatched', 'reconciling', 'happened', 'needs_human')"),
        postgresql_where=text("state IN ('dispatched', 'reconciling', 'happened', 'needs_human')"),
    ),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    _of_run(),
    _whole("turn"),
    _text("call_id"),
    _text("tenant"),
    _text("tool"),
    _text("tier"),
    _text("status"),
    _text("arguments"),  # as they stand now
    _text("arguments_hash"),
    _text("summary"),
    _text("requested_by"),
    _real("requested_at"),
    _real("expires_at"),
    _whole("steps"),
    _flag("distinct_people"),
    _flag("by_another"),
    _text("granted_by"),  # JSON list of names
    Column("decided_at", Double),
    _text("reason"),
    Column("standing", Text),
    Column("permissions", Text, nullable=False, server_default="[]"),  # JSON list of what is granted with it
    Index("ix_approvals_run", "run_id", "turn"),
    Index("ix_approvals_status", "status", "requested_at"),
)

# Every identity. The table is older than most of them, and programs of the release before still read it: to them a key
# that may not approve is an approver who may decide about nothing.
keys = Table(
    "approvers",
    metadata,
    Column("id", Text, primary_key=True),
    _text("name"),
    _text("token_hash"),
    _text("scopes"),  # JSON: scopes, tenants, agents, tools, tiers, permissions
    _real("created_at"),
    Column("revoked_at", Double),
    _empty("shown"),
    Column("expires_at", Double),
    Column("replaces", Text),
    Index("ix_approvers_token", "token_hash", unique=True),
)

quotas = Table(
    "quotas",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("runs_in_flight_max", Integer),
    Column("requests_per_minute_max", Integer),
    Column("cost_usd_per_day_max", Double),
    _real("changed_at"),
)

# Requests that carry a key of their sender, so that one sent again gets the answer of the first.
replays = Table(
    "replays",
    metadata,
    _text("tenant"),
    _text("route"),
    _text("key"),
    _text("request_hash"),
    Column("status", Integer),  # of the answer; none while it is being worked on
    Column("body", Text),
    Column("run_id", Text),
    _real("at"),
    PrimaryKeyConstraint("tenant", "route", "key"),
    Index("ix_replays_at", "at"),
)

standing_approvals = Table(
    "standing_approvals",
    metadata,
    Column("id", Text, primary_key=True),
    _text("tenant"),
    _text("tool"),
    _text("tier_max"),
    _text("arguments"),  # JSON object
    _real("expires_at"),
    _text("created_by"),
    _real("created_at"),
    Index("ix_standing_tool", "tenant", "tool"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _real("at"),
    _text("action"),
    _flag("accepted"),
    _text("reason"),
    _text("person"),
    _text("tenant"),
    Column("run_id", Text),
    Column("call_id", Text),
    Column("approval_id", Text),
    _text("data"),
    Index("ix_audit_call", "call_id"),
)
