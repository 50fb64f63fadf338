"""Upstreams that answer nonsense, and clients that ask it: a failure or a refusal, never a crash."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.engines import FACTS, parse_metrics
from providers.exchange import Endpoint, Unsupported, Upstream
from providers.failures import classify
from providers.hints import limit_hints, retry_after_s
from providers.kinds import kind_named
from tests.providers.reading import Read, call
from tests.providers.scripted import SCRIPTS
from tests.providers.scripted_vendors import VENDORS, aws
from tests.providers.test_vendor_requests import FULL

ANSWERS = {**SCRIPTS, **VENDORS}
JUNK: list[Any] = [None, True, False, -1, 0, 7, 10**18, 0.5, "", "x", [], {}, [None], [{}], {"type": {}}, [["x"]]]
SEEDS = 100


def spoil(value: Any, chance: Random, rate: float) -> Any:
    """A JSON value with some of its parts replaced by junk or left out."""
    if chance.random() < rate:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        return {name: spoil(part, chance, rate) for name, part in value.items() if chance.random() >= rate / 2}
    if isinstance(value, list):
        return [spoil(part, chance, rate) for part in value]
    return value


def spoiled(body: bytes, chance: Random) -> bytes:
    """A stream or an object with junk in some of its JSON."""
    if body.startswith((b"{", b"[")):
        return orjson.dumps(spoil(orjson.loads(body), chance, 0.1))
    frames = []
    for frame in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        head, data, text = frame.partition(b"data: ")
        if text.startswith(b"{") and chance.random() < 0.5:
            text = orjson.dumps(spoil(orjson.loads(text), chance, 0.1))
        frames.append(head + data + text)
    return b"\n\n".join(frames)


def spoiled_converse(chance: Random) -> bytes:
    names = ["messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"]
    value = {
        "contentBlockIndex": 0,
        "start": {"toolUse": {"toolUseId": "a", "name": "f"}},
        "delta": {"text": "x", "toolUse": {"input": "{"}, "reasoningContent": {"text": "x"}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 1},
    }
    spoilt = (spoil(value, chance, 0.1) for _ in names)
    return b"".join(aws(name, part if isinstance(part, dict) else {}) for name, part in zip(names, spoilt, strict=True))


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_no_answer_crashes_a_reader(kind: str) -> None:
    for seed in range(SEEDS):
        chance = Random(seed)
        script = ANSWERS[kind][chance.choice(sorted(ANSWERS[kind]))]
        if kind == "bedrock" and not script.body.startswith(b"{"):
            body = spoiled_converse(chance)
        else:
            body = spoiled(script.body, chance)
        fields = chance.choice([{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
        endpoint = chance.choice([Endpoint.CHAT, Endpoint.COMPLETIONS]) if kind in SCRIPTS else Endpoint.CHAT
        upstream = Upstream(kind, "http://x", "m", gather=chance.random() < 0.5)
        reader = kind_named(kind).reader(call(endpoint, **fields), upstream, 200, script.headers)
        at = chance.randrange(len(body) + 1)
        got = Read(reader, [body[:at], body[at:]])
        assert got.done != (got.failure is not None), seed


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_no_request_crashes_an_adapter(kind: str) -> None:
    for seed in range(SEEDS):
        chance = Random(seed)
        body = spoil({**FULL, "functions": [{"name": "f"}], "stream": chance.random() < 0.5}, chance, 0.02)
        asked = call()
        asked.body.update(body if isinstance(body, dict) else {})
        asked.raw = orjson.dumps(asked.body)
        upstream = Upstream(kind, "http://x", "m", "key", gather=chance.random() < 0.5, cache_salt="s", priority=1)
        try:
            outgoing = kind_named(kind).prepare(asked, upstream)
        except Unsupported:
            continue
        assert isinstance(orjson.loads(outgoing.body), dict)


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_no_error_crashes_the_table(kind: str) -> None:
    details = [{"@type": "QuotaFailure", "violations": [{"quotaId": "PerDay"}], "retryDelay": "1s", "reason": "x"}]
    error = {"message": "m", "type": "t", "code": 1, "param": "p", "details": details, "innererror": {"code": "c"}}
    whole = {"error": error, "object": "error", "message": "m", "__type": "x"}
    for seed in range(SEEDS):
        chance = Random(seed)
        raw = orjson.dumps(spoil(whole, chance, 0.15)) if seed % 5 else chance.randbytes(20)
        failure = classify(kind, chance.randrange(300, 600), (("Retry-After", str(chance.choice(JUNK))),), raw)
        assert failure.message
        assert failure.retry_after_s is None or 0 <= failure.retry_after_s <= 3600


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_no_header_crashes_the_hints(one: str, other: str) -> None:
    headers = {
        "retry-after": one,
        "date": other,
        "x-ratelimit-remaining-tokens": one,
        "x-ratelimit-reset-tokens": other,
    }
    headers["anthropic-ratelimit-requests-reset"] = one
    retry_after_s(headers, None, other)
    limit_hints(headers)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["vllm", "sglang", "tgi"]), st.lists(st.text('ab{}"=\\ \n1.', max_size=20), max_size=5))
def test_no_page_crashes_the_metrics(kind: str, lines: list[str]) -> None:
    names = ["vllm:num_requests_running", "sglang:num_queue_reqs", "tgi_queue_size", "vllm:cache_config_info"]
    page = "\n".join(names[n % 4] + line for n, line in enumerate(lines))
    parse_metrics(kind, page)
