"""How each kind says when to come back: an answer, and the seconds a client of the gateway is told."""

from __future__ import annotations

from typing import Any

from tests.providers.scripted import JSON, Script, compact


def _refusal(status: int, body: Any, **headers: str) -> Script:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Script(status, (*JSON, *named), compact(body))


def _openai(message: str = "Rate limit reached", code: str | None = "rate_limit_exceeded") -> dict[str, Any]:
    return {"error": {"message": message, "type": "tokens", "param": None, "code": code}}


def _gemini(*details: Any) -> dict[str, Any]:
    error = {"code": 429, "message": "Resource has been exhausted", "status": "RESOURCE_EXHAUSTED"}
    return {"error": {**error, "details": list(details)}}


_RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}
_ANTHROPIC = {"type": "error", "error": {"type": "rate_limit_error", "message": "m"}, "request_id": "req_1"}
_THROTTLED = {"message": "Too many requests, please wait before trying again."}
_DATE = "Tue, 01 Dec 2026 12:00:00 GMT"

_HEADER = {"`retry-after`": (_refusal(429, _openai(), retry_after="7"), 7)}
_HEADERS = {
    **_HEADER,
    "`retry-after` as a date": (
        _refusal(429, _openai(), retry_after="Tue, 01 Dec 2026 12:00:09 GMT", date=_DATE),
        9,
    ),
    "`retry-after-ms`": (_refusal(429, _openai(), retry_after_ms="2500", retry_after="7"), 3),
}
_LIMITS = {
    "`x-ratelimit-reset-*`": (
        _refusal(
            429,
            _openai(),
            x_ratelimit_remaining_requests="12",
            x_ratelimit_reset_requests="1s",
            x_ratelimit_remaining_tokens="0",
            x_ratelimit_reset_tokens="1m6s",
        ),
        66,
    ),
}
_WORDS = {"the message": (_refusal(429, _openai("Rate limit reached. Please try again in 4.2s.")), 5)}

_ENGINE = {"`retry-after`": (_refusal(503, _openai("queue is full", None), retry_after="7"), 7)}

HINTS: dict[str, dict[str, tuple[Script, int]]] = {
    **dict.fromkeys(("vllm", "sglang", "llamacpp", "ollama", "tgi", "trtllm"), _ENGINE),
    "openai": {**_HEADERS, **_LIMITS, **_WORDS},
    "azure": {**_HEADERS, **_LIMITS},
    "openai-compatible": {**_HEADERS, **_LIMITS, **_WORDS},
    "anthropic": {
        "`retry-after`": (_refusal(429, _ANTHROPIC, retry_after="11"), 11),
        "`anthropic-ratelimit-*-reset`": (
            _refusal(
                429,
                _ANTHROPIC,
                anthropic_ratelimit_input_tokens_remaining="0",
                anthropic_ratelimit_input_tokens_reset="2026-12-01T12:00:20Z",
                anthropic_ratelimit_requests_remaining="5",
                anthropic_ratelimit_requests_reset="2026-12-01T12:00:40Z",
                date=_DATE,
            ),
            20,
        ),
    },
    "gemini": {"RetryInfo in the body": (_refusal(429, _gemini(_RETRY_INFO)), 34)},
    "gemini-openai": {
        "RetryInfo in the body": (_refusal(429, [_gemini(_RETRY_INFO)]), 34),
        **_HEADER,
    },
    "bedrock": {
        "`retry-after`": (_refusal(429, _THROTTLED, retry_after="7", x_amzn_errortype="ThrottlingException"), 7)
    },
}
