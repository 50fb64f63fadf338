"""One function for each feature: asks an upstream for it through the gateway, and says in a word what came of it.

Each asserts what must hold for whatever the kind can do; the word it returns is the cell of the table in the docs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import orjson
from pydantic import BaseModel

from gateway import values
from providers.engines import FACTS
from tests.gateway.stack import until
from tests.kinds.cases import Case
from tests.kinds.hints import HINTS
from tests.kinds.scripts import OUTPUT, PROMPT, WRITTEN, answers
from tests.kinds.stand import MESSAGES, Stand
from tests.kinds.upstream import Play
from tests.providers.scripted import CACHED, REASONING, TEXT, THOUGHT
from tests.providers.scripted_vendors import FRESH, OUT, READ
from tests.providers.scripted_vendors import WRITTEN as WRITTEN_THERE

Observer = Callable[[Stand, Case], Awaitable[str]]

PNG = "data:image/png;base64,iVBORw0KGgo="
URL = "https://pictures.test/cat.png"
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TRANSLATED = frozenset({"anthropic", "gemini", "bedrock"})


class Place(BaseModel):
    """What a client wants to be told in JSON."""

    city: str


def asked(stand: Stand, case: Case) -> dict[str, Any]:
    """The body of the last request upstream, which must have come with our credential to the right place."""
    seen = stand.at(case).last
    assert case.authorised(seen)
    assert seen.path in {case.path, case.streamed or case.path}
    if case.kind in TRANSLATED and case.kind != "anthropic":
        assert "model" not in seen.body
    else:
        assert seen.body["model"] == "upstream-model"
    body: dict[str, Any] = seen.body
    return body


def halfway(case: Case, name: str = "text") -> tuple[Any, int]:
    """An answer and a place in it with content before and behind."""
    script = answers(case.kind)[name]
    return script, len(script.body) * 3 // 5


async def tried(call: Awaitable[Any]) -> tuple[Any, openai.BadRequestError | None]:
    """What came of a call, or that it was refused."""
    try:
        return await call, None
    except openai.BadRequestError as refused:
        return None, refused


async def unsupported(call: Awaitable[Any]) -> str | None:
    """What a refusal names; None when there was none."""
    _, refused = await tried(call)
    if refused is None:
        return None
    assert refused.code == "unsupported_parameter"
    assert refused.param
    return refused.param


async def chat(stand: Stand, case: Case) -> str:
    """A whole answer."""
    answer = await stand.ask(case)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert answer.object == "chat.completion"
    asked(stand, case)
    return "yes"


async def stream(stand: Stand, case: Case) -> str:
    """Chunks that come while the upstream is still at it, in the order strict clients need."""
    script, at = halfway(case)
    stand.at(case).next(Play(script, cut=at, then="hold"))
    chunks = []
    async for chunk in await stand.ask(case, stream=True):
        chunks.append(chunk)
        if "".join(one.choices[0].delta.content or "" for one in chunks):
            stand.at(case).release.set()  # something was said before the upstream had ended
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == TEXT
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)  # nobody asked
    assert len({chunk.id for chunk in chunks}) == 1
    asked(stand, case)
    return "yes"


async def tools(stand: Stand, case: Case) -> str:
    """Two calls, whole and streamed, and their results on the next turn."""
    answer = await stand.ask(case, tools=[WEATHER])
    calls = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    stand.at(case).next(answers(case.kind)["tools"])
    async with stand.sdk.chat.completions.stream(model=case.model, messages=MESSAGES, tools=[WEATHER]) as events:
        streamed = (await events.get_final_completion()).choices[0].message.tool_calls
    for found in (calls, streamed):
        told = [(call.function.name, orjson.loads(call.function.arguments)) for call in found or ()]
        assert told == [("weather", {"city": "Bonn"}), ("clock", {})]
        assert len({call.id for call in found or ()}) == 2
    results = [{"role": "tool", "tool_call_id": call.id, "content": "grey"} for call in calls or ()]
    said = answer.choices[0].message.model_dump(exclude_none=True)
    await stand.ask(case, messages=[*MESSAGES, said, *results], tools=[WEATHER])
    raw = stand.at(case).last.raw
    assert raw.count(b'"grey"') + raw.count(b'"grey"') >= 2
    if "gemini" in case.kind:  # without it the vendor refuses the turn
        assert b"c2ln" in raw
    return "yes"


async def images(stand: Stand, case: Case) -> str:
    """A picture in the request."""

    def picture(url: str) -> Any:
        part = {"type": "image_url", "image_url": {"url": url}}
        return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]

    await stand.ask(case, messages=picture(PNG))
    assert b"iVBORw0KGgo=" in stand.at(case).last.raw
    refused = await unsupported(stand.ask(case, messages=picture(URL)))
    if refused is None:
        assert URL.encode() in stand.at(case).last.raw
        return "data, URL"
    assert refused == "messages[0].content[1].image_url"
    return "data"


async def json_schema(stand: Stand, case: Case) -> str:
    """JSON of a schema; and JSON of any kind."""
    stand.at(case).next(answers(case.kind, ('{"city":', ' "Bonn"}'))["text"])
    if case.name == "azure-old":
        stand.at(case).plays.clear()
        stand.at(case).next(answers(case.kind, ('{"city":', ' "Bonn"}'))["whole"])
    answer = await stand.sdk.chat.completions.parse(model=case.model, messages=MESSAGES, response_format=Place)
    assert answer.choices[0].message.parsed == Place(city="Bonn")
    raw = stand.at(case).last.raw.replace(b"\\", b"")
    assert b'"city":{"title":"City","type":"string"}' in raw.replace(b", ", b",").replace(b": ", b":")
    refused = await unsupported(stand.ask(case, response_format={"type": "json_object"}))
    assert refused in (None, "response_format")
    return "schema, any" if refused is None else "schema"


async def reasoning(stand: Stand, case: Case) -> str:
    """Reasoning asked for; what is shown of it."""
    answer, refused = await tried(stand.ask(case, reasoning_effort="low", stream=True))
    if refused is not None:
        assert refused.code == "unsupported_parameter"
        return "refused"
    chunks = [chunk async for chunk in answer]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    asked(stand, case)
    extras = [chunk.choices[0].delta.model_extra or {} for chunk in chunks]
    shown = "".join(extra.get("reasoning_content") or extra.get("reasoning") or "" for extra in extras)
    if shown:
        assert shown == "".join(THOUGHT)
        return "text"
    return "passed on"


async def usage(stand: Stand, case: Case) -> str:
    """The tokens of whole answers and of streams, to the client and to the books."""
    whole = (await stand.ask(case)).usage
    line = await stand.line()
    expected = (FRESH + READ + WRITTEN_THERE, OUT) if case.kind in TRANSLATED else (PROMPT, OUTPUT)
    assert (whole.prompt_tokens, whole.completion_tokens, whole.total_tokens) == (*expected, sum(expected))
    assert (line["prompt_tokens"], line["output_tokens"], line["usage"]) == (*expected, "reported")
    answer, refused = await tried(stand.ask(case, stream=True, stream_options={"include_usage": True}))
    if refused is not None:
        assert (refused.code, refused.param) == ("unsupported_parameter", "stream_options.include_usage")
        async for _ in await stand.ask(case, stream=True):
            pass
        assert (await stand.line())["usage"] == "estimated"
        return "whole answers"
    chunks = [chunk async for chunk in answer]
    assert [chunk.choices for chunk in chunks if chunk.usage] == [[]]
    assert chunks[-1].usage.total_tokens == sum(expected)
    assert (await stand.line())["output_tokens"] == expected[1]
    return "yes"


async def parts(stand: Stand, case: Case) -> str:
    """What of the tokens was cached, written to a cache, or reasoning. What is not told is absent, not zero."""
    told = (await stand.ask(case)).usage
    prompt = told.prompt_tokens_details.model_dump(exclude_none=True) if told.prompt_tokens_details else {}
    output = told.completion_tokens_details.model_dump(exclude_none=True) if told.completion_tokens_details else {}
    extra = (told.model_extra or {}).get("reasoning_tokens")
    found = {
        "cached": (prompt.get("cached_tokens"), READ if case.kind in TRANSLATED else CACHED),
        "written": (prompt.get("cache_write_tokens"), WRITTEN_THERE if case.kind in TRANSLATED else WRITTEN),
        "reasoning": (output.get("reasoning_tokens", extra), REASONING),
    }
    for name, (value, expected) in found.items():
        assert value in (None, expected), name
    return ", ".join(name for name, (value, _) in found.items() if value is not None) or "-"


async def leaving(stand: Stand, case: Case) -> str:
    """The client leaves in the middle of a stream."""
    upstream = stand.at(case)
    script, at = halfway(case)
    upstream.next(Play(script, cut=at, then="hold"))
    answer = await stand.ask(case, stream=True, max_tokens=50)
    async for chunk in answer:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await answer.close()
    if case.engine:
        took = await until(lambda: upstream.last.left, 1.0)
        assert took < 0.5
        line = await stand.line()
        assert (line["outcome"], line["usage"]) == ("gone_decode", "estimated")
        assert stand.app.leaving.ends == {(case.name, "closed"): 1}
        return "closed at once"
    await until(lambda: stand.app.leaving.running == 1)
    await asyncio.sleep(0.02)
    assert not upstream.last.left
    assert stand.app.pools[case.name].gate.core.snapshot(stand.app.clock.monotonic()).seats_held == 1
    upstream.release.set()
    line = await stand.line()
    assert line["outcome"] == "gone_decode"
    expected = OUT if case.kind in TRANSLATED else OUTPUT
    assert (line["output_tokens"], line["usage"]) == (expected, "reported")
    assert stand.app.leaving.ends == {(case.name, "read"): 1}
    return "read to its usage"


async def hints(stand: Stand, case: Case) -> str:
    """When to come back, in every form the kind says it."""
    found = []
    for form, (script, seconds) in HINTS[case.kind].items():
        stand.reset()
        stand.at(case).next(*[script] * 3)
        status, headers, _ = await stand.post(case)
        assert status in (429, 503), form
        assert headers["retry-after"] == str(seconds), form
        found.append(form)
    stand.reset()
    return ", ".join(found)


async def health(stand: Stand, case: Case) -> str:
    """A replica that says it is not well gets no work, and gets it again when it is."""
    if not case.engine or FACTS[case.kind].health_path is None:
        return "by its answers"
    parts, pool = stand.app.pools[case.name], stand.app.config.pools[case.name]
    [watched] = values.watched(pool)

    async def poll() -> None:
        parts.polled.take(await parts.watcher.poll(watched))

    stand.at(case).health = 503
    for _ in range(3):
        await poll()
    status, headers, body = await stand.post(case)
    assert (status, orjson.loads(body)["error"]["code"]) == (503, "no_target_available")
    assert stand.at(case).seen == []
    assert int(headers["retry-after"]) >= 1
    stand.at(case).health = 200
    for _ in range(3):
        await poll()
    assert (await stand.post(case))[0] == 200
    return f"`GET {FACTS[case.kind].health_path}`"


async def embeddings(stand: Stand, case: Case) -> str:
    """Embeddings, as floats or base64 as the SDK likes them."""
    call = stand.sdk.embeddings.create(model=case.model, input="weigh this", encoding_format="float")
    answer, refused = await tried(call)
    if refused is not None:
        assert refused.code == "unsupported_parameter"
        assert "embeddings" in refused.message
        assert stand.at(case).seen == []
        return "refused"
    assert answer.data[0].embedding == [0.5, -0.25]
    line = await stand.line()
    assert (line["prompt_tokens"], line["output_tokens"]) == (PROMPT, 0)
    return "yes"


FEATURES: dict[str, Observer] = {
    "chat": chat,
    "stream": stream,
    "tools": tools,
    "images": images,
    "JSON": json_schema,
    "reasoning": reasoning,
    "usage": usage,
    "parts of usage": parts,
    "when a client leaves": leaving,
    "hints": hints,
    "health": health,
    "embeddings": embeddings,
}
