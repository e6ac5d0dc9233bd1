"""Effects and approvals of one tenant, in the order they are listed. Only adds."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_index("ix_effects_tenant", "effects", ["tenant", "changed_at", "call_id"])
    op.create_index("ix_approvals_tenant", "approvals", ["tenant", "requested_at", "id"])
