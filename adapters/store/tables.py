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
)

from toolfleet.adapters.store.columns import count, empty, flag, partial, real, text_, whole

metadata = MetaData()


def _of_run() -> Column[str]:
    return Column("run_id", Text, ForeignKey("runs.id"), nullable=False)


runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    text_("tenant"),
    text_("agent"),
    text_("agent_version"),
    text_("lane"),
    Column("previous_run_id", Text, ForeignKey("runs.id")),
    Column("idempotency_key", Text),
    real("created_at"),
    Column("deadline_at", Double),
    text_("status"),
    Column("reason", Text),
    whole("turn"),
    text_("phase"),
    Column("finished_at", Double),
    whole("model_calls"),
    whole("tool_calls"),
    whole("corrections"),
    count("input_tokens"),
    count("output_tokens"),
    count("cached_tokens"),
    count("reasoning_tokens"),
    real("cost_usd"),
    real("active_s"),
    real("model_s"),
    real("tool_s"),
    real("queue_s"),
    text_("signatures"),  # the repeat window, [[signature, call_id, turn, read_only, ok], ...]
    text_("state"),  # the rest of RunState, JSON
    partial(
        "ix_runs_idempotency",
        "tenant",
        "idempotency_key",
        unique=True,
        where="idempotency_key IS NOT NULL",
    ),
    partial(
        "ix_runs_deadline",
        "deadline_at",
        where="deadline_at IS NOT NULL AND finished_at IS NULL",
    ),
    partial(
        "ix_runs_previous",
        "previous_run_id",
        where="previous_run_id IS NOT NULL",
    ),
    partial(
        "ix_runs_finished",
        "finished_at",
        where="finished_at IS NOT NULL",
    ),
    Index("ix_runs_status", "status", "id"),
    Index("ix_runs_agent", "agent", "id"),
    Index("ix_runs_tenant", "tenant", "id"),
    partial(
        "ix_runs_in_flight",
        "tenant",
        where="finished_at IS NULL",
    ),
)

run_inputs = Table(
    "run_inputs",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), primary_key=True),
    text_("prompt_version"),
    text_("toolset_version"),
    Column("retry_of", Text),
    text_("request_hash"),
    text_("correlation_id"),
    text_("limits"),
    text_("trace"),
    text_("metadata"),
    text_("context"),
    text_("input"),
    empty("principal"),
    Column("permissions", Text, nullable=False, server_default="[]"),
    empty("effect_scope"),
)

turns = Table(
    "turns",
    metadata,
    _of_run(),
    whole("turn"),
    text_("phase"),
    real("started_at"),
    Column("merged_at", Double),
    Column("ended_at", Double),
    PrimaryKeyConstraint("run_id", "turn"),
    sqlite_with_rowid=False,
)

calls = Table(
    "calls",
    metadata,
    _of_run(),
    whole("turn"),
    whole("position"),  # in call order, from 0
    text_("call_id"),
    text_("tool"),
    text_("tier"),
    text_("signature"),
    text_("wire_id"),
    flag("effect"),
    flag("idempotent"),
    flag("repaired"),
    flag("tell_on_denied"),
    flag("repeatable"),
    whole("attempts_max"),
    real("timeout_s"),
    text_("waiting"),
    whole("attempt"),
    Column("outcome", Text),  # set in the transaction that stores the result
    text_("arguments"),
    empty("terms"),  # Terms as JSON; empty: none
    empty("waits_key"),  # the effect key it waits for
    Column("edited", Boolean, nullable=False, server_default=false()),
    Column("call_timeout_s", Double),  # for all attempts together; null: no end
    Column("deadline_at", Double),  # when it is over; null: not taken yet, or it stands still
    PrimaryKeyConstraint("run_id", "turn", "position"),
    partial(
        "ix_calls_waits_key",
        "waits_key",
        where="waits_key <> ''",
    ),
    sqlite_with_rowid=False,
)

results = Table(
    "results",
    metadata,
    _of_run(),
    whole("turn"),
    text_("call_id"),
    whole("position"),
    text_("outcome"),
    Column("reason", Text),
    whole("attempt"),
    real("tool_s"),
    real("queue_s"),
    real("stored_at"),
    text_("content"),
    Column("full_text", Text),
    PrimaryKeyConstraint("run_id", "turn", "call_id"),  # the first terminal outcome wins
)

items = Table(
    "items",
    metadata,
    _of_run(),
    whole("seq"),
    whole("turn"),
    text_("kind"),
    text_("body"),
    PrimaryKeyConstraint("run_id", "seq"),
)

commands = Table(
    "commands",
    metadata,
    Column("id", Text, primary_key=True),
    _of_run(),
    whole("turn"),
    Column("call_id", Text),
    text_("queue"),
    real("due_at"),
    Column("sent_at", Double),
    whole("sends"),
    real("lost_after_s"),
    real("check_at"),  # from when on the keeper thinks that it was never sent, or lost (rules.check_at)
    whole("deaths"),
    Column("owner", Text),
    Column("token", Text),
    Column("lease_until", Double),
    text_("body"),  # {"trace": {...}}
    Index("ix_commands_run", "run_id"),
    partial(
        "ix_commands_check",
        "check_at",
        where="token IS NULL",
    ),
    partial(
        "ix_commands_sent",
        "sent_at",
        where="token IS NULL",
    ),
    partial(
        "ix_commands_lease",
        "lease_until",
        where="token IS NOT NULL",
    ),
    sqlite_with_rowid=False,
)

usage = Table(
    "usage",
    metadata,
    Column("token", Text, primary_key=True),  # of the decide lease: names one model call
    _of_run(),
    text_("tenant"),
    whole("turn"),
    whole("attempt"),
    text_("model"),
    text_("status"),  # reserved | replied | failed
    real("reserved_usd"),
    count("input_tokens"),
    count("output_tokens"),
    count("cached_tokens"),
    count("reasoning_tokens"),
    real("cost_usd"),
    real("at"),
    Column("closed_at", Double),
    Index("ix_usage_run", "run_id"),
    Index("ix_usage_tenant", "tenant", "at"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _of_run(),
    text_("tenant"),
    whole("turn"),
    text_("kind"),
    text_("outcome"),
    Column("call_id", Text),
    Column("tool_name", Text),
    whole("attempt"),
    real("at"),
    text_("fields"),
    Index("ix_steps_run", "run_id", "id"),
)

events = Table(
    "events",
    metadata,
    _of_run(),
    whole("seq"),
    text_("type"),
    real("at"),
    text_("data"),
    PrimaryKeyConstraint("run_id", "seq"),
    sqlite_with_rowid=False,
)

dead = Table(
    "dead",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text),  # of the run; nothing is known of a message that cannot be trusted
    text_("kind"),
    text_("queue"),
    text_("reason"),
    real("at"),
    Column("run_id", Text),
    Column("turn", Integer),
    Column("call_id", Text),
    Column("body", LargeBinary),
    text_("detail"),
    Index("ix_dead_at", "at", "id"),
)

agents = Table(
    "agents",
    metadata,
    text_("name"),
    text_("version"),
    whole("rank"),  # the highest of a name is the one registered last
    real("registered_at"),
    text_("spec"),
    PrimaryKeyConstraint("name", "version"),
)

# One row: the oldest revision whose programs can work with this schema (adapters/store/migrate.py).
schema_carries = Table("schema_carries", metadata, Column("oldest", Text, primary_key=True))

brokers = Table(
    "brokers",
    metadata,
    Column("name", Text, primary_key=True),
    text_("marker"),
    Column("reset_at", Double),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    text_("host"),
    whole("pid"),
    text_("roles"),
    text_("version"),
    real("started_at"),
    real("seen_at"),
    text_("state"),
)

cached_results = Table(
    "cached_results",
    metadata,
    Column("key", Text, primary_key=True),  # of tenant, tool, its version, arguments and what else decides
    text_("tenant"),
    text_("tool"),
    text_("body"),
    real("stored_at"),
    real("expires_at"),
    Index("ix_cached_results_expires", "expires_at"),
)

# One row for each call with an effect, from its first claim on. The index is the last word about who holds a key.
effects = Table(
    "effects",
    metadata,
    Column("call_id", Text, primary_key=True),
    _of_run(),
    whole("turn"),
    text_("tenant"),
    text_("tool"),
    text_("tier"),
    text_("key"),
    text_("state"),
    whole("attempt"),
    real("send_by"),
    real("asked_at"),
    whole("tries"),
    flag("doubt"),
    Column("approval_id", Text),
    real("opened_at"),
    real("changed_at"),
    Column("resolved_by", Text),
    Column("answer", Text),  # JSON, as an operator gave it
    Index("ix_effects_run", "run_id", "turn"),
    Index("ix_effects_state", "state", "changed_at"),
    Index("ix_effects_tenant", "tenant", "changed_at", "call_id"),
    partial(
        "ix_effects_held",
        "key",
        unique=True,
        where="state IN ('dispatched', 'reconciling', 'happened', 'needs_human')",
    ),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    _of_run(),
    whole("turn"),
    text_("call_id"),
    text_("tenant"),
    text_("tool"),
    text_("tier"),
    text_("status"),
    text_("arguments"),  # as they stand now
    text_("arguments_hash"),
    text_("summary"),
    text_("requested_by"),
    real("requested_at"),
    real("expires_at"),
    whole("steps"),
    flag("distinct_people"),
    flag("by_another"),
    text_("granted_by"),  # JSON list of names
    Column("decided_at", Double),
    text_("reason"),
    Column("standing", Text),
    Column("permissions", Text, nullable=False, server_default="[]"),  # JSON list of what is granted with it
    Index("ix_approvals_run", "run_id", "turn"),
    Index("ix_approvals_status", "status", "requested_at"),
    Index("ix_approvals_tenant", "tenant", "requested_at", "id"),
)

# Every identity. The table is older than most of them, and programs of the release before still read it: to them a key
# that may not approve is an approver who may decide about nothing.
keys = Table(
    "approvers",
    metadata,
    Column("id", Text, primary_key=True),
    text_("name"),
    text_("token_hash"),
    text_("scopes"),  # JSON: scopes, tenants, agents, tools, tiers, permissions
    real("created_at"),
    Column("revoked_at", Double),
    empty("shown"),
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
    real("changed_at"),
)

# Requests that carry a key of their sender, so that one sent again gets the answer of the first.
replays = Table(
    "replays",
    metadata,
    text_("tenant"),
    text_("route"),
    text_("key"),
    text_("request_hash"),
    Column("status", Integer),  # of the answer; none while it is being worked on
    Column("body", Text),
    Column("run_id", Text),
    real("at"),
    PrimaryKeyConstraint("tenant", "route", "key"),
    Index("ix_replays_at", "at"),
)

standing_approvals = Table(
    "standing_approvals",
    metadata,
    Column("id", Text, primary_key=True),
    text_("tenant"),
    text_("tool"),
    text_("tier_max"),
    text_("arguments"),  # JSON object
    real("expires_at"),
    text_("created_by"),
    real("created_at"),
    Index("ix_standing_tool", "tenant", "tool"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    real("at"),
    text_("action"),
    flag("accepted"),
    text_("reason"),
    text_("person"),
    text_("tenant"),
    Column("run_id", Text),
    Column("call_id", Text),
    Column("approval_id", Text),
    text_("data"),
    Index("ix_audit_call", "call_id"),
)
