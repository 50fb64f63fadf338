"""Weighted fair admission to one pool, in tokens."""
