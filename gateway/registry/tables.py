"""The tables of registry and ledger, the same on SQLite and PostgreSQL.

Times are Unix microseconds and days and minutes are counted from 1970, so that no database's idea of a time zone
matters. Settings that are only ever read as a whole are JSON in the form of the config file. No column holds a secret:
keys are kept as hashes.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)

HEAD: Final = "0001"
"""The migration that makes the schema what this file says."""

metadata = MetaData()
# SQLite counts rows by itself only in a column that is exactly INTEGER PRIMARY KEY.
_Serial = BigInteger().with_variant(Integer, "sqlite")

registry_version = Table(
    "registry_version",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
)
"""One row. Whoever changes anything adds 1 first, which makes writers take turns: versions are committed in order."""

changes = Table(
    "changes",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("at", BigInteger, nullable=False),
)
"""What each version touched, so that a reader loads only that. Old rows are trimmed; a reader that has missed some
loads everything."""

organisations = Table(
    "organisations",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("limits", JSON, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", String(63), primary_key=True),
    # True: only an anchor for what hangs on a tenant of the config file; the settings are the file's.
    Column("declared", Boolean, nullable=False),
    Column("organisation", String(63), nullable=True),
    Column("weight", Float, nullable=False),
    Column("class", String(16), nullable=False),
    Column("models", JSON, nullable=False),
    Column("limits", JSON, nullable=False),
    Column("model_limits", JSON, nullable=False),
    Column("isolation", String(16), nullable=False),
    Column("policy", JSON, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Index("tenants_organisation", "organisation"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("tenant", String(63), ForeignKey("tenants.name", ondelete="CASCADE"), primary_key=True),
    Column("pool", String(63), primary_key=True),
    Column("terms", JSON, nullable=False),
)

tenant_keys = Table(
    "tenant_keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(63), ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False),
    Column("hash", String(80), nullable=False, unique=True),
    Column("hint", String(8), nullable=False),
    Column("label", String(200), nullable=False),
    Column("limits", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(80), nullable=False),
    Column("expires_at", BigInteger, nullable=True),
    Column("revoked_at", BigInteger, nullable=True),
    Column("blocked", Boolean, nullable=False),
    Column("replaced_by", String(16), nullable=True),
    Column("last_used_at", BigInteger, nullable=True),
    Column("revision", Integer, nullable=False),
    Index("tenant_keys_tenant", "tenant"),
)

admin_keys = Table(
    "admin_keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("tenant", String(63), ForeignKey("tenants.name", ondelete="CASCADE"), nullable=True),
    Column("hash", String(80), nullable=False, unique=True),
    Column("hint", String(8), nullable=False),
    Column("label", String(200), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(80), nullable=False),
    Column("expires_at", BigInteger, nullable=True),
    Column("revoked_at", BigInteger, nullable=True),
    Index("admin_keys_tenant", "tenant"),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("actor", String(80), nullable=False),
    Column("role", String(16), nullable=False),
    Column("address", String(64), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("action", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("name", String(128), nullable=False),
    Column("tenant", String(63), nullable=True),
    Column("before", JSON(none_as_null=True), nullable=True),
    Column("after", JSON(none_as_null=True), nullable=True),
    Index("audit_tenant", "tenant", "seq"),
)
"""Append only: the database itself refuses to change or delete a row (see `APPEND_ONLY`)."""

idempotency = Table(
    "idempotency",
    metadata,
    Column("principal", String(80), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("headers", JSON, nullable=False),
    Column("body", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("idempotency_at", "at"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("tenant", String(63), nullable=False),
    Column("key", String(16), nullable=False),
    Column("model", String(128), nullable=False),
    Column("class", String(16), nullable=False),
    Column("pool", String(63), nullable=False),
    Column("replica", String(63), nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("status", SmallInteger, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("micro_usd", BigInteger, nullable=False),
    # True: counted or estimated here, since the upstream reported nothing.
    Column("estimated", Boolean, nullable=False),
    Column("queue_ms", Float, nullable=True),
    Column("ttft_ms", Float, nullable=True),
    Column("total_ms", Float, nullable=True),
    Index("ledger_tenant_at", "tenant", "at", "request_id"),
    Index("ledger_at", "at", "request_id"),
)

refusals = Table(
    "refusals",
    metadata,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", String(63), primary_key=True),
    Column("key", String(16), primary_key=True),
    Column("reason", String(32), primary_key=True),
    Column("requests", BigInteger, nullable=False),
)

usage_days = Table(
    "usage_days",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("tenant", String(63), primary_key=True),
    Column("key", String(16), primary_key=True),
    Column("model", String(128), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("estimated", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("micro_usd", BigInteger, nullable=False),
)
"""Sums of the ledger, kept up in the transaction that adds its rows; they outlive the rows."""

APPEND_ONLY: Final = {
    "sqlite": tuple(
        f"CREATE TRIGGER audit_no_{verb.lower()} BEFORE {verb} ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append only'); END"
        for verb in ("UPDATE", "DELETE")
    ),
    "postgresql": (
        "CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append only'; END $$",
        "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()",
    ),
}
"""Statements that make the database refuse changes of the audit log, by dialect."""
