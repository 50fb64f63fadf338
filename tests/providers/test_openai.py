"""What is sent upstream: as little as possible is changed, and nothing a tenant may not set gets through."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from providers.engines import FACTS
from providers.exchange import Call, Endpoint, Outgoing, Unsupported, Upstream
from providers.fields import READS, STEERING, asks
from providers.kinds import kind_named
from providers.openai import gatherable
from tests.providers.reading import MESSAGES, call

OPENAI_SPEAKERS = ("vllm", "simulated", "sglang", "tgi", "llamacpp", "ollama", "openai", "azure", "openai-compatible")


def prepare(kind: str, asked: Call, base_url: str = "http://127.0.0.1:9001", **fields: Any) -> Outgoing:
    fields.setdefault("model", "upstream-model")
    return kind_named(kind).prepare(asked, Upstream(kind, base_url, **fields))


def sent(kind: str, asked: Call, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(prepare(kind, asked, **fields).body)
    return body


@pytest.mark.parametrize("kind", OPENAI_SPEAKERS)
def test_only_the_model_is_changed_in_an_ordinary_call(kind: str) -> None:
    asked = call(temperature=0.5, seed=7)
    assert sent(kind, asked) == {**asked.body, "model": "upstream-model"}
    assert asked.body["model"] == "public-model"


@pytest.mark.parametrize("kind", OPENAI_SPEAKERS)
def test_a_call_in_which_nothing_changes_is_sent_as_it_came(kind: str) -> None:
    new = {} if kind in READS else {"some_new_field": {"x": 1}}
    asked = call(model="upstream-model", temperature=0.5, **new)
    outgoing = prepare(kind, asked)
    assert outgoing.body is asked.raw
    assert not outgoing.streams


def test_a_stream_that_asks_for_usage_itself_is_sent_as_it_came() -> None:
    asked = call(model="upstream-model", stream=True, stream_options={"include_usage": True})
    assert prepare("vllm", asked).body is asked.raw


@pytest.mark.parametrize("kind", OPENAI_SPEAKERS)
def test_usage_is_always_asked_for_in_a_stream(kind: str) -> None:
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        outgoing = prepare(kind, call(stream=True, **options))
        assert outgoing.streams
        assert orjson.loads(outgoing.body)["stream_options"] == {"include_usage": True}


def test_an_upstream_that_refuses_stream_options_is_not_sent_any() -> None:
    extra = {"stream_options": "false"}
    asked = call(stream=True, stream_options={"include_usage": False})
    assert "stream_options" not in sent("openai-compatible", asked, extra=extra)
    with pytest.raises(Unsupported) as refused:
        sent("openai-compatible", call(stream=True, stream_options={"include_usage": True}), extra=extra)
    assert refused.value.field == "stream_options.include_usage"
    # Nor is a call gathered there: its usage would be lost on the way.
    assert not prepare("openai-compatible", call(), extra=extra, gather=True).streams


def test_usage_in_every_chunk_is_asked_only_of_engines_that_know_it() -> None:
    asked = call(
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False},
    )
    assert sent("vllm", asked)["stream_options"]["continuous_usage_stats"] is True
    assert sent("openai", asked)["stream_options"] == {"include_usage": True, "include_obfuscation": False}


@pytest.mark.parametrize("kind", OPENAI_SPEAKERS)
def test_what_steers_an_engine_is_stripped(kind: str) -> None:
    asked = call(**dict.fromkeys(STEERING, "x"))
    assert STEERING.isdisjoint(sent(kind, asked))
    embeddings = call(Endpoint.EMBEDDINGS, input="hi", priority=1, cache_salt="stolen")
    if Endpoint.EMBEDDINGS in FACTS[kind].endpoints:
        assert STEERING.isdisjoint(sent(kind, embeddings))


def test_our_own_salt_and_priority_take_the_place_of_the_clients() -> None:
    asked = call(priority=-100, cache_salt="stolen")
    vllm = sent("vllm", asked, cache_salt="ours", priority=5)
    assert (vllm["cache_salt"], vllm["priority"]) == ("ours", -5)
    sglang = sent("sglang", asked, cache_salt="ours", priority=5)
    assert (sglang["cache_salt"], sglang["priority"]) == ("ours", 5)
    assert "priority" not in sent("vllm", asked, priority=0)
    for kind in ("openai", "tgi", "llamacpp", "ollama"):
        assert STEERING.isdisjoint(sent(kind, asked, cache_salt="ours", priority=5))
    assert sent("vllm", call(Endpoint.EMBEDDINGS, input="hi"), cache_salt="ours")["cache_salt"] == "ours"


@pytest.mark.parametrize("twin", ["MODEL", "Keep_Alive", "Max_Tokens"])
def test_a_field_in_other_letters_does_not_pass_where_letters_do_not_count(twin: str) -> None:
    with pytest.raises(Unsupported) as refused:
        sent("ollama", call(**{twin: 9}))
    assert refused.value.field == twin
    assert twin not in sent("ollama", call(max_tokens=5, **{twin: None}))  # which would lift the cap there


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("ollama", {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ("ollama", {"max_completion_tokens": 5, "max_tokens": 9}, {"max_tokens": 5}),
        ("ollama", {"max_completion_tokens": None, "max_tokens": 9}, {"max_tokens": 9}),
        ("llamacpp", {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ("openai-compatible", {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ("openai", {"max_tokens": 5}, {"max_completion_tokens": 5}),
        ("openai", {"max_tokens": 5, "max_completion_tokens": 4}, {"max_completion_tokens": 4}),
        ("azure", {"max_tokens": 5}, {"max_completion_tokens": 5}),
        ("vllm", {"max_tokens": 5}, {"max_tokens": 5}),
        ("vllm", {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
        ("vllm", {"max_tokens": 5, "max_completion_tokens": 4}, {"max_completion_tokens": 4}),
    ],
)
def test_the_output_cap_has_one_name(kind: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    body = sent(kind, call(**given))
    assert {name: value for name, value in body.items() if name.startswith("max_")} == expected


def test_the_name_of_the_output_cap_can_be_set() -> None:
    body = sent("openai-compatible", call(max_tokens=5), extra={"max_tokens_field": "max_completion_tokens"})
    assert (body.get("max_tokens"), body["max_completion_tokens"]) == (None, 5)


def test_completions_keep_their_only_cap() -> None:
    assert sent("openai", call(Endpoint.COMPLETIONS, prompt="hi", max_tokens=5))["max_tokens"] == 5


def test_the_developer_is_the_system_where_nobody_knows_him() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, *MESSAGES]
    asked = call(messages=messages)
    assert [m["role"] for m in sent("vllm", asked)["messages"]] == ["system", "user"]
    assert [m["role"] for m in sent("openai", asked)["messages"]] == ["developer", "user"]
    assert messages[0]["role"] == "developer"


def test_what_only_hints_is_left_out_where_it_would_be_refused() -> None:
    asked = call(top_k=-1, chat_template_kwargs={}, metadata={"a": "b"}, temperature=1, n=1)
    assert sent("vllm", asked)["top_k"] == -1
    assert set(sent("openai", asked)) == {"model", "messages", "metadata", "temperature", "n"}
    assert set(sent("gemini-openai", asked)) == {"model", "messages", "temperature", "n"}
    assert sent("gemini-openai", call(max_completion_tokens=5))["max_tokens"] == 5


UNREAD = [
    (("openai", "azure", "gemini-openai", "ollama", "tgi"), {"top_k": 5}, "top_k"),
    (("openai", "azure", "gemini-openai", "ollama", "tgi"), {"guided_json": {"type": "object"}}, "guided_json"),
    (("openai", "azure", "gemini-openai", "ollama", "tgi"), {"min_p": 0.1, "seed": 1}, "min_p"),
    (("gemini-openai", "ollama", "tgi"), {"logit_bias": {"5": 1}}, "logit_bias"),
    (("gemini-openai", "ollama", "tgi"), {"prediction": {"type": "content"}}, "prediction"),
    (("gemini-openai", "ollama", "tgi"), {"verbosity": "low"}, "verbosity"),
    (("ollama", "tgi"), {"n": 2}, "n"),
    (("ollama",), {"tools": [{"type": "function"}], "tool_choice": "required"}, "tool_choice"),
    (("ollama", "tgi"), {"tools": [{"type": "function"}], "parallel_tool_calls": False}, "parallel_tool_calls"),
    (("tgi",), {"reasoning_effort": "high"}, "reasoning_effort"),
    (("tgi",), {"response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("kinds", "fields", "name"), UNREAD, ids=[name for _, _, name in UNREAD])
def test_what_a_kind_overlooks_or_refuses_is_refused_by_name(
    kinds: tuple[str, ...], fields: dict[str, Any], name: str
) -> None:
    for kind in kinds:
        with pytest.raises(Unsupported) as refused:
            sent(kind, call(**fields))
        assert refused.value.field == name, kind
        assert name in str(refused.value)
    if "response_format" not in fields:
        assert name in sent("vllm", call(**fields))


def test_a_field_at_its_default_asks_for_nothing() -> None:
    neutral = {"n": 1, "top_k": -1, "tool_choice": "none", "parallel_tool_calls": False, "logit_bias": {}, "echo": None}
    for kind in ("ollama", "tgi", "gemini-openai"):
        assert sent(kind, call(**neutral, user="u"))["model"] == "upstream-model"
    assert asks("n", True)  # not the number 1
    assert asks("web_search_options", {})
    assert not asks("repetition_penalty", 1.0)


def test_ollama_takes_no_pictures_by_url() -> None:
    def asked(url: str) -> Call:
        part = {"type": "image_url", "image_url": {"url": url}}
        return call(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, part]}])

    assert sent("ollama", asked("data:image/png;base64,eA=="))["messages"]
    with pytest.raises(Unsupported) as refused:
        sent("ollama", asked("https://pictures.test/cat.png"))
    assert refused.value.field == "messages[0].content[1].image_url"


def test_tgi_is_sent_its_own_form_of_schemas_and_stop_words() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "out", "schema": {"type": "object"}, "strict": True}}
    asked = call(response_format=form, stop="END")
    body = sent("tgi", asked)
    value = {"name": "out", "schema": {"type": "object"}}
    assert (body["response_format"], body["stop"]) == ({"type": "json_schema", "value": value}, ["END"])
    assert sent("vllm", asked)["response_format"] == form
    assert asked.body["response_format"] == form


@pytest.mark.parametrize(
    ("base_url", "path"),
    [
        ("http://127.0.0.1:9001", "/v1/chat/completions"),
        ("http://127.0.0.1:9001/", "/v1/chat/completions"),
        ("https://api.openai.com/v1", "/v1/chat/completions"),
        ("https://api.openai.com/v1/", "/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "/api/v1/chat/completions"),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", "/v1beta/openai/chat/completions"),
    ],
)
def test_a_base_url_is_read_as_the_sdks_read_it(base_url: str, path: str) -> None:
    assert prepare("openai-compatible", call(), base_url).url_path == path


def test_every_endpoint_has_its_path() -> None:
    assert prepare("vllm", call(Endpoint.COMPLETIONS, prompt="hi")).url_path == "/v1/completions"
    assert prepare("vllm", call(Endpoint.EMBEDDINGS, input="hi")).url_path == "/v1/embeddings"
    with pytest.raises(Unsupported, match="embeddings is not served by tgi"):
        prepare("tgi", call(Endpoint.EMBEDDINGS, input="hi"))


def test_our_credential_goes_upstream_and_nothing_else() -> None:
    headers = prepare("openai", call(), credential="sk-ours", extra={"organization": "org-1", "project": "p-1"}).headers
    assert headers == (
        ("content-type", "application/json"),
        ("authorization", "Bearer sk-ours"),
        ("openai-organization", "org-1"),
        ("openai-project", "p-1"),
    )
    assert prepare("vllm", call()).headers == (("content-type", "application/json"),)


def test_a_call_that_is_gathered_streams_upstream() -> None:
    outgoing = prepare("vllm", call(stream=False), gather=True)
    assert outgoing.streams
    body = orjson.loads(outgoing.body)
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert not prepare("vllm", call(n=2), gather=True).streams
    assert not prepare("vllm", call(Endpoint.EMBEDDINGS, input="hi"), gather=True).streams


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"n": 1, "logprobs": False, "top_logprobs": None}, True),
        ({"n": 2}, False),
        ({"logprobs": True}, False),
        ({"top_logprobs": 2}, False),
        ({"prompt_logprobs": 0}, False),
        ({"audio": {"voice": "x"}}, False),
        ({"stream": True}, False),
    ],
)
def test_what_can_be_gathered(fields: dict[str, Any], expected: bool) -> None:
    assert gatherable(call(**fields)) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "hi"}, True),
        ({"prompt": ["hi"]}, True),
        ({"prompt": [1, 2, 3]}, True),
        ({"prompt": ["hi", "ho"]}, False),
        ({"prompt": [[1], [2]]}, False),
        ({"prompt": "hi", "best_of": 2}, False),
        ({"prompt": "hi", "echo": True}, False),
    ],
)
def test_which_completions_can_be_gathered(fields: dict[str, Any], expected: bool) -> None:
    assert gatherable(call(Endpoint.COMPLETIONS, **fields)) is expected


def test_a_kind_nobody_knows_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        kind_named("nonsense")
