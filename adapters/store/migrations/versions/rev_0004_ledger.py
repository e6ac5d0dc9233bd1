"""The effect ledger, approvals, approvers, and the audit of what they decided."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_HELD = sa.text("state IN ('dispatched', 'reconciling', 'happened', 'needs_human')")

# Effects that were out, or nobody could tell of, when this release took over. Their keys are their calls': what
# another call of an older release did cannot be known.
_CARRIED_OVER = """
INSERT INTO effects (call_id, run_id, turn, tenant, tool, tier, key, state, attempt, send_by, asked_at, tries, doubt,
                     opened_at, changed_at)
SELECT c.call_id, c.run_id, c.turn, r.tenant, c.tool, c.tier, 'before-ledger/' || c.call_id,
       CASE WHEN c.outcome IS NULL THEN 'dispatched' ELSE 'needs_human' END,
       c.attempt, r.created_at, r.created_at, 0, {false}, r.created_at, r.created_at
FROM calls c JOIN runs r ON r.id = c.run_id
WHERE c.effect AND ((c.dispatched AND c.outcome IS NULL) OR c.outcome = 'needs_human')
"""


def upgrade() -> None:
    for name, default in (("principal", ""), ("permissions", "[]"), ("effect_scope", "")):
        op.add_column("run_inputs", sa.Column(name, sa.Text(), nullable=False, server_default=default))
    for name in ("terms", "waits_key"):
        op.add_column("calls", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    op.add_column("calls", sa.Column("edited", sa.Boolean(), nullable=False, server_default=sa.false()))
    _effects()
    false = "0" if op.get_bind().dialect.name == "sqlite" else "false"
    op.execute(sa.text(_CARRIED_OVER.format(false=false)))
    op.drop_column("calls", "dispatched")
    waits = sa.text("waits_key <> ''")
    op.create_index("ix_calls_waits_key", "calls", ["waits_key"], sqlite_where=waits, postgresql_where=waits)
    _approvals()
    _approvers()


def _effects() -> None:
    op.create_table(
        "effects",
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("send_by", sa.Double(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("doubt", sa.Boolean(), nullable=False),
        sa.Column("approval_id", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("resolved_by", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("call_id"),
    )
    op.create_index("ix_effects_run", "effects", ["run_id", "turn"])
    op.create_index("ix_effects_state", "effects", ["state", "changed_at"])
    op.create_index(
        "ix_effects_held", "effects", ["key"], unique=True, sqlite_where=_HELD, postgresql_where=_HELD
    )


def _approvals() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("arguments_hash", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("distinct_people", sa.Boolean(), nullable=False),
        sa.Column("by_another", sa.Boolean(), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("standing", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_approvals_run", "approvals", ["run_id", "turn"])
    op.create_index("ix_approvals_status", "approvals", ["status", "requested_at"])


def _approvers() -> None:
    op.create_table(
        "approvers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_approvers_token", "approvers", ["token_hash"], unique=True)
    op.create_table(
        "standing_approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("tier_max", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_standing_tool", "standing_approvals", ["tenant", "tool"])
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("call_id", sa.Text(), nullable=True),
        sa.Column("approval_id", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_call", "audit", ["call_id"])
