"""Limits that are counted once: requests, tokens, concurrency and money."""
