"""Headers between the three parties: which of the client's go upstream, and which answers carry.

Nothing a client sends reaches an upstream unless it is named here. Identity, routing and engine
steering headers are the gateway's own, so a client can neither spoof a tenant nor steer an engine.
"""

from __future__ import annotations

from gateway.api.seam import Exchange, Headers

# Trace context lets an engine's own spans join the caller's trace; nothing else is passed on.
_PASSED = ("traceparent", "tracestate")


def passed_on(http: Exchange) -> Headers:
    """The client's headers that go upstream."""
    return [(name, value) for name in _PASSED if (value := http.header(name)) is not None and len(value) < 600]
