"""A replica dies in the middle of streams: they go on from another one, and nobody can tell; or an honest end."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.continuation import Continuation, Transcript, continuable
from providers.exchange import NO_USAGE, Call, Dialect, Endpoint, Relayed, Usage
from providers.simulated.faults import Fault, FaultKind, Match
from providers.simulated.settings import EngineSettings
from tests.gateway.failover import Heard, account, engine, forget, hear, route, serving
from tests.gateway.stack import FAST, Stack, until

SHORT = "timeouts: {connect_ms: 500, first_token_ms: 2000, stall_ms: 300, total_ms: 30000}, slo: {ttft_ms: 1000}"


def pair(a: str, b: str, more: str = "") -> str:
    return route(
        f"""  local:
    {{kind: simulated, poll_ms: 500, {SHORT},
     replicas: [{{name: r0, url: "{a}"}}, {{name: r1, url: "{b}"}}]}}""",
        "      - targets: [{pool: local, model: sim-large}]",
        more,
    )


async def stream(stack: Stack, **fields: Any) -> Heard:
    body = stack.chat(**{"stream": True, "temperature": 0, "stream_options": {"include_usage": True}, **fields})
    status, _, data = await stack.post(body)
    return hear(status, data)


BREAKS = [
    Fault(FaultKind.CUT),
    Fault(FaultKind.CUT, reset=True),
    Fault(FaultKind.UNFINISHED),
    Fault(FaultKind.GARBAGE),
    Fault(FaultKind.ERROR_IN_STREAM, status=500),
]


@pytest.mark.asyncio
async def test_cut_at_every_event_boundary_a_stream_is_the_same_as_unbroken() -> None:
    async with serving([engine(), engine()], pair) as stack:
        unbroken = await stream(stack, max_tokens=8)
        assert (unbroken.done, unbroken.finish, len(unbroken.text)) == (True, "length", 32)
        breaks = [(BREAKS[0], tokens) for tokens in range(10)]
        breaks += [(fault, tokens) for tokens in (0, 4, 8) for fault in BREAKS[1:]]
        breaks.append((Fault(FaultKind.SILENT_AFTER_TOKENS), 4))
        for fault, tokens in breaks:
            forget(stack)
            for server in stack.engines:
                server.add_faults([Fault(fault.kind, tokens=tokens, status=fault.status, reset=fault.reset, count=1)])
            heard = await stream(stack, max_tokens=8)
            line = stack.lines()[-1]
            where = (fault.kind, tokens, line)
            assert (heard.text, heard.finish, heard.done) == (unbroken.text, unbroken.finish, True), where
            assert [len(chunk["choices"]) for chunk in heard.chunks] == [len(c["choices"]) for c in unbroken.chunks], (
                where
            )
            assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in heard.chunks}) == 1, where
            roles = [choice["delta"].get("role") for chunk in heard.chunks for choice in chunk["choices"]]
            assert roles == ["assistant", *[None] * (len(roles) - 1)], where
            assert heard.usage is not None
            counts = ("prompt_tokens", "completion_tokens", "total_tokens")
            assert [heard.usage[name] for name in counts] == [unbroken.usage[name] for name in counts], where
            assert (line["outcome"], line["prompt_tokens"], line["output_tokens"]) == ("finished", 5, 8), where
            assert line["attempts"] == 3, where
        await stack.at_rest()


async def _killed(streams: int, tokens: int) -> None:
    """Kills one of two replicas, which share `streams` of `tokens` each, when a third of its work is done."""
    quick = EngineSettings(a_s=0.004, d_s=1e-6, kv_tokens=200_000, max_seqs=256)
    timers = "timeouts: {connect_ms: 10000, first_token_ms: 60000, stall_ms: 60000, total_ms: 120000}"

    def text(a: str, b: str) -> str:
        return pair(a, b).replace(SHORT, timers + ", capacity: {seats: 256, chunk_tokens: 8192}")

    async with serving([engine(quick), engine(quick)], text) as stack:
        messages = [[{"role": "user", "content": f"question number {n}"}] for n in range(streams)]
        asked = [asyncio.ensure_future(stream(stack, max_tokens=tokens, messages=one)) for one in messages]
        dying, other = stack.engines
        await until(lambda: dying.engine.snapshot().generation_tokens_total > streams * tokens // 6, 60.0)
        held = dying.engine.running
        assert held >= streams // 3
        await dying.close(reset=True)
        heard = await asyncio.gather(*asked)
        lines = stack.lines()
        assert {line["outcome"] for line in lines} == {"finished"}
        assert sum(line["attempts"] == 2 for line in lines) == held
        # The simulated engine's text follows from the prompt, so the other one tells what an unbroken run would say.
        told = await asyncio.gather(*(stream(stack, max_tokens=tokens, messages=one) for one in messages))
        for one, unbroken in zip(heard, told, strict=True):
            assert (one.text, one.finish, one.done) == (unbroken.text, "length", True)
            assert len(one.text) == 4 * tokens
            assert [len(c["choices"]) for c in one.chunks] == [len(c["choices"]) for c in unbroken.chunks]
            assert len({(c["id"], c["created"]) for c in one.chunks}) == 1
            assert one.usage is not None
            assert unbroken.usage is not None
            for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert one.usage[count] == unbroken.usage[count]
        assert await stack.metric("weighbridge_broken_streams_total") == held
        await until(lambda: other.engine.running == 0)


@pytest.mark.asyncio
async def test_one_of_two_replicas_is_killed_under_many_streams_and_all_go_on() -> None:
    await _killed(streams=60, tokens=60)


@pytest.mark.long
@pytest.mark.asyncio
async def test_one_of_two_replicas_is_killed_under_200_streams_of_300_tokens() -> None:
    await _killed(streams=200, tokens=300)


NOT_CONTINUED = [
    {"temperature": 0.7},
    {"temperature": 0, "presence_penalty": 0.5},
    {"temperature": 0, "logprobs": True},
    {"temperature": 0, "response_format": {"type": "json_object"}},
    {
        "temperature": 0,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    },
]


@pytest.mark.asyncio
async def test_what_cannot_go_on_ends_with_an_honest_error() -> None:
    async with serving([engine(), engine()], pair) as stack:
        for fields in NOT_CONTINUED:
            forget(stack)
            for server in stack.engines:
                server.add_faults([Fault(FaultKind.CUT, tokens=4, match=Match(stream=True))])
            heard = await stream(stack, max_tokens=12, **fields)
            assert not heard.done, fields
            assert heard.error is not None, fields
            assert heard.error["code"] == "upstream_stream_cut", fields
            line = stack.lines()[-1]
            assert (line["outcome"], line["attempts"]) == ("stream_cut", 1), fields
        await stack.at_rest()


@pytest.mark.asyncio
async def test_a_route_may_always_or_never_go_on() -> None:
    for policy, temperature, outcome in (("always", 0.7, "finished"), ("never", 0, "stream_cut")):
        async with serving([engine(), engine()], lambda a, b: pair(a, b, f"continuation: {policy}")) as stack:  # noqa: B023
            for server in stack.engines:
                server.add_faults([Fault(FaultKind.CUT, tokens=4, count=1)])
            heard = await stream(stack, max_tokens=12, temperature=temperature)
            assert heard.done is (outcome == "finished")
            assert stack.lines()[-1]["outcome"] == outcome


@pytest.mark.asyncio
async def test_another_vendor_is_never_asked_to_go_on() -> None:
    def text(a: str, b: str) -> str:
        return route(
            f"""  local: {{kind: simulated, {SHORT}, replicas: [{{name: r0, url: "{a}"}}]}}
  vendor:
    kind: openai-compatible
    account: {{url: "{b}/v1", credentials: [{{name: main, key: k}}]}}""",
            """      - targets: [{pool: local, model: sim-large}]
      - targets: [{pool: vendor, model: sim-large}]""",
        )

    async with serving([engine(), account("k")], text) as stack:
        stack.engines[0].add_faults([Fault(FaultKind.CUT, tokens=4)])
        heard = await stream(stack, max_tokens=12)
        assert heard.error is not None
        assert heard.error["code"] == "upstream_stream_cut"
        # Its own replica was asked to continue and broke again; the stream says how it first ended.
        assert stack.engines[1].state()["requests_total"] == 0


@pytest.mark.asyncio
async def test_when_the_engine_refuses_to_go_on_the_first_error_is_the_one_told() -> None:
    async with serving([engine(), engine()], pair) as stack:
        for server in stack.engines:
            refuse = Fault(FaultKind.STATUS, status=400, match=Match(contains="continue_final_message"))
            server.add_faults([refuse, Fault(FaultKind.CUT, tokens=4)])
        heard = await stream(stack, max_tokens=12)
        assert heard.error is not None
        assert heard.error["code"] == "upstream_stream_cut"
        assert [try_["result"] for try_ in stack.lines()[-1]["tried"]] == ["cut", "client"]
        await stack.at_rest()


@pytest.mark.asyncio
async def test_a_sole_replica_that_cuts_its_streams_goes_on_itself() -> None:
    def text(a: str) -> str:
        return route(
            f'  local: {{kind: simulated, {SHORT}, replicas: [{{name: r0, url: "{a}"}}]}}',
            "      - targets: [{pool: local, model: sim-large}]",
        )

    async with serving([engine()], text) as stack:
        unbroken = await stream(stack, max_tokens=12)
        stack.engines[0].add_faults([Fault(FaultKind.CUT, tokens=4, count=1)])
        heard = await stream(stack, max_tokens=12)
        assert (heard.text, heard.done) == (unbroken.text, True)


@pytest.mark.asyncio
async def test_text_completions_go_on_too() -> None:
    async with serving([engine(), engine()], pair) as stack:
        body = {"model": "chat-large", "prompt": "Once upon", "max_tokens": 9, "temperature": 0, "stream": True}
        _, _, whole = await stack.post(body, path="/completions")
        for server in stack.engines:
            server.add_faults([Fault(FaultKind.CUT, tokens=4, count=1)])
        status, _, data = await stack.post(body, path="/completions")

        def said(raw: bytes) -> list[str]:
            frames = [orjson.loads(f[6:]) for f in raw.split(b"\n\n") if f.startswith(b"data: {")]
            return [choice["text"] for frame in frames for choice in frame["choices"] if choice["text"]]

        assert status == 200
        assert data.endswith(b"data: [DONE]\n\n")
        assert len(said(data)) == len(said(whole)) == 9
        assert said(data)[:4] == said(whole)[:4]


# -- the parts ---------------------------------------------------------------------------------------------


def call(**fields: Any) -> Call:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "temperature": 0, **fields}
    return Call(Endpoint.CHAT, Dialect.OPENAI, orjson.dumps(body), body, "m", True, True)


def chunk(content: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": {**delta, **more}, "finish_reason": finish}
    return b"data: %b\n\n" % orjson.dumps({"id": "a", "created": 1, "model": "m", "choices": [choice]})


class Fixed:
    """A reader that gives what it is told to."""

    def __init__(self, out: bytes, usage: Usage = NO_USAGE) -> None:
        self.usage = usage
        self.tokens = 1
        self._out = out

    def feed(self, data: bytes) -> Relayed:
        return Relayed(self._out, 1, True)

    def end(self) -> Relayed:
        return Relayed()


def test_a_long_transcript_keeps_its_text_and_not_its_bytes() -> None:
    kept = Transcript()
    for n in range(5000):
        kept.add(chunk(f" {n}"))
    assert sum(map(len, kept._parts)) <= 64 << 10
    said = kept.said()
    assert said is not None
    assert said.text == "".join(f" {n}" for n in range(5000))
    assert said.head == {"id": "a", "created": 1, "model": "m"}


@pytest.mark.parametrize("more", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}])
def test_what_is_not_plain_text_cannot_be_begun_in_the_middle(more: dict[str, Any]) -> None:
    kept = Transcript()
    kept.add(chunk("a") + chunk(None, None, **more))
    assert kept.said() is None


def test_the_partial_answer_is_the_last_message_and_the_cap_is_less() -> None:
    kept = Transcript()
    kept.add(chunk("Hello", role="assistant") + chunk(" there"))
    said = kept.said()
    assert said is not None
    asked = Continuation(call(max_completion_tokens=10, min_tokens=5), said, 2).call.body
    assert asked["messages"][-1] == {"role": "assistant", "content": "Hello there"}
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    assert (asked["max_completion_tokens"], asked["min_tokens"]) == (8, 3)
    begun = call(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "Oh. "}],
                 continue_final_message=True, add_generation_prompt=False)  # fmt: skip
    assert Continuation(begun, said, 2).call.body["messages"][-1]["content"] == "Oh. Hello there"


@pytest.mark.parametrize(
    ("said_so_far", "again", "told"), [("a\n\n", "\n\nb", "b"), ("a\n", "b", "b"), ("a", " b", " b")]
)
def test_white_space_that_a_template_cut_is_not_said_twice(said_so_far: str, again: str, told: str) -> None:
    kept = Transcript()
    kept.add(chunk(said_so_far))
    said = kept.said()
    assert said is not None
    relayed = Continuation(call(), said, 1).reader(Fixed(chunk(again))).feed(b"x")
    assert orjson.loads(relayed.out[6:])["choices"][0]["delta"] == {"content": told}


def test_usage_is_the_prompt_of_the_first_and_the_output_of_both() -> None:
    kept = Transcript()
    kept.add(chunk("a b c"))
    said = kept.said()
    assert said is not None
    reader = Continuation(call(), said, 3).reader(Fixed(b"", Usage(103, 7, 96, None, None)))
    assert reader.usage == Usage(100, 10, 96, None, None)


def test_what_may_go_on() -> None:
    assert continuable(call(), "auto")
    assert continuable(call(response_format={"type": "text"}), "auto")
    assert not continuable(call(), "never")
    assert not continuable(call(temperature=1), "auto")
    assert continuable(call(temperature=1), "always")
    for fields in ({"n": 2}, {"tools": [1]}, {"logprobs": True}, {"guided_regex": "a"}, {"messages": []},
                   {"add_generation_prompt": False}, {"response_format": {"type": "json_schema"}}):  # fmt: skip
        assert not continuable(call(**fields), "always"), fields
    assert FAST.max_seqs == 32
