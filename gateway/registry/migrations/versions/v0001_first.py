"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.registry.database import finish

revision = "0001"
down_revision = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Written out in full: what the tables are later must not change what this migration makes."""
    op.create_table(
        "audit",
        sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(80), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=True),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
    )
    op.create_index("audit_tenant", "audit", ["tenant", "seq"])
    op.create_table(
        "changes",
        sa.Column("version", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(80), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
    )
    op.create_index("idempotency_at", "idempotency", ["at"])
    op.create_table(
        "ledger",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("class", sa.String(16), nullable=False),
        sa.Column("pool", sa.String(63), nullable=False),
        sa.Column("replica", sa.String(63), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.SmallInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("micro_usd", sa.BigInteger(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("queue_ms", sa.Float(), nullable=True),
        sa.Column("ttft_ms", sa.Float(), nullable=True),
        sa.Column("total_ms", sa.Float(), nullable=True),
    )
    op.create_index("ledger_at", "ledger", ["at", "request_id"])
    op.create_index("ledger_tenant_at", "ledger", ["tenant", "at", "request_id"])
    op.create_table(
        "organisations",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "refusals",
        sa.Column("minute", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("reason", sa.String(32), primary_key=True),
        sa.Column("requests", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "registry_version",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("declared", sa.Boolean(), nullable=False),
        sa.Column("organisation", sa.String(63), nullable=True),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("class", sa.String(16), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("model_limits", sa.JSON(), nullable=False),
        sa.Column("isolation", sa.String(16), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("tenants_organisation", "tenants", ["organisation"])
    op.create_table(
        "usage_days",
        sa.Column("day", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("model", sa.String(128), primary_key=True),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.Column("estimated", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("micro_usd", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "admin_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("tenant", sa.String(63), sa.ForeignKey("tenants.name", ondelete="CASCADE"), nullable=True),
        sa.Column("hash", sa.String(80), nullable=False, unique=True),
        sa.Column("hint", sa.String(8), nullable=False),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(80), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
    )
    op.create_index("admin_keys_tenant", "admin_keys", ["tenant"])
    op.create_table(
        "reservations",
        sa.Column("tenant", sa.String(63), sa.ForeignKey("tenants.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("pool", sa.String(63), primary_key=True),
        sa.Column("terms", sa.JSON(), nullable=False),
    )
    op.create_table(
        "tenant_keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(63), sa.ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False),
        sa.Column("hash", sa.String(80), nullable=False, unique=True),
        sa.Column("hint", sa.String(8), nullable=False),
        sa.Column("label", sa.String(200), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(80), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("blocked", sa.Boolean(), nullable=False),
        sa.Column("replaced_by", sa.String(16), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
    )
    op.create_index("tenant_keys_tenant", "tenant_keys", ["tenant"])
    finish(op.get_bind())
