"""Upstreams: wire formats, the connection to them, routing and their health."""
