"""Replays request traces against a running gateway and reports what each tenant got."""
