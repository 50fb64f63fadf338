"""Tenants, keys, limits, the usage ledger and the audit log in SQL, and the versioned cache in front of them."""
