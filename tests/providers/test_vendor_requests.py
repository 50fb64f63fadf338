"""Requests to vendors with their own dialect: golden bodies, and what is refused by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from providers.exchange import Endpoint, Outgoing, Unsupported, Upstream
from providers.kinds import kind_named
from providers.sigv4 import Keys, sign
from tests.providers.reading import call

BASES = {
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "bedrock": "https://bedrock-runtime.eu-west-1.amazonaws.com",
}
PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0="
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather.", "parameters": SCHEMA, "strict": True}

FULL: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is this?"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": PNG}}],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Bonn"}'},
                    "extra_content": {"google": {"thought_signature": "c2ln"}},
                },
                {"id": "call_2", "type": "function", "function": {"name": "clock", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky":"grey"}'},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
        {"role": "developer", "content": [{"type": "text", "text": "In German."}]},
        {"role": "user", "content": "So?"},
    ],
    "max_completion_tokens": 100,
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": ["END"],
    "tools": [{"type": "function", "function": WEATHER}, {"type": "function", "function": {"name": "clock"}}],
    "tool_choice": "auto",
    "reasoning_effort": "high",
    "response_format": {"type": "json_schema", "json_schema": {"name": "out", "schema": SCHEMA, "strict": True}},
    "user": "u-1",
    "service_tier": "default",
    "n": 1,
    "logprobs": False,
    "logit_bias": {},
    "priority": 3,
    "prompt_cache_key": "x",
}


def prepare(kind: str, base_url: str | None = None, *, endpoint: Endpoint = Endpoint.CHAT, **body: Any) -> Outgoing:
    extra = body.pop("extra", {})
    gather = body.pop("gather", False)
    credential = body.pop("credential", "secret")
    model = body.pop("upstream_model", "upstream-model")
    upstream = Upstream(kind, base_url or BASES[kind], model, credential, extra, gather=gather, at=1767323045)
    return kind_named(kind).prepare(call(endpoint, **body), upstream)


def sent(kind: str, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(prepare(kind, **body).body)
    return found


def test_anthropic() -> None:
    assert sent("anthropic", **FULL) == {
        "model": "upstream-model",
        "max_tokens": 100,
        "system": "Be brief.\n\nIn German.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "text", "text": "And this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bonn"}},
                    {"type": "tool_use", "id": "call_2", "name": "clock", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": [{"type": "text", "text": '{"sky":"grey"}'}],
                    },
                    {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "tools": [
            {"name": "weather", "input_schema": SCHEMA, "description": "The weather.", "strict": True},
            {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
        ],
        "tool_choice": {"type": "auto"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"},
        "metadata": {"user_id": "u-1"},
        "service_tier": "standard_only",
    }


def test_gemini() -> None:
    assert sent("gemini", **FULL) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "In German."}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "What is this?"},
                    {"text": "And this?"},
                    {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
                ],
            },
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": {"id": "call_1", "name": "weather", "args": {"city": "Bonn"}},
                        "thoughtSignature": "c2ln",
                    },
                    {"functionCall": {"id": "call_2", "name": "clock", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"id": "call_1", "name": "weather", "response": {"sky": "grey"}}},
                    {"functionResponse": {"id": "call_2", "name": "clock", "response": {"result": "noon"}}},
                    {"text": "So?"},
                ],
            },
        ],
        "generationConfig": {
            "maxOutputTokens": 100,
            "temperature": 0.5,
            "topP": 0.9,
            "stopSequences": ["END"],
            "responseMimeType": "application/json",
            "responseJsonSchema": SCHEMA,
            "thinkingConfig": {"thinkingLevel": "HIGH", "includeThoughts": True},
        },
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "weather", "parametersJsonSchema": SCHEMA, "description": "The weather."},
                    {"name": "clock", "parametersJsonSchema": {"type": "object", "properties": {}}},
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    }


def test_bedrock() -> None:
    assert sent("bedrock", **FULL) == {
        "system": [{"text": "Be brief."}, {"text": "In German."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"text": "What is this?"},
                    {"text": "And this?"},
                    {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"toolUse": {"toolUseId": "call_1", "name": "weather", "input": {"city": "Bonn"}}},
                    {"toolUse": {"toolUseId": "call_2", "name": "clock", "input": {}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "call_1", "content": [{"text": '{"sky":"grey"}'}]}},
                    {"toolResult": {"toolUseId": "call_2", "content": [{"text": "noon"}]}},
                    {"text": "So?"},
                ],
            },
        ],
        "inferenceConfig": {"maxTokens": 100, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "weather",
                        "inputSchema": {"json": SCHEMA},
                        "description": "The weather.",
                        "strict": True,
                    }
                },
                {"toolSpec": {"name": "clock", "inputSchema": {"json": {"type": "object", "properties": {}}}}},
            ],
            "toolChoice": {"auto": {}},
        },
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {"jsonSchema": {"name": "out", "schema": orjson.dumps(SCHEMA).decode()}},
            },
            "effort": "high",
        },
        "serviceTier": {"type": "default"},
    }


def test_the_smallest_request_asks_for_nothing_more() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert sent("anthropic") == {
        "model": "upstream-model",
        "max_tokens": 8192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }
    assert sent("gemini", messages=messages) == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    assert sent("bedrock", messages=messages) == {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    assert sent("anthropic", extra={"default_max_tokens": "50"})["max_tokens"] == 50


def test_the_version_follows_the_fields_that_are_used() -> None:
    def version(**body: Any) -> tuple[str, bool]:
        outgoing = prepare("anthropic", **body)
        return dict(outgoing.headers)["anthropic-version"], b"temperature" in outgoing.body

    assert version() == ("2026-10-21", False)
    assert version(temperature=1, top_p=1.0) == ("2026-10-21", False)
    assert version(temperature=0.2) == ("2023-06-01", True)
    assert version(top_k=4) == ("2023-06-01", False)
    assert version(temperature=1, extra={"api_version": "2026-10-21"}) == ("2026-10-21", False)
    with pytest.raises(Unsupported) as refused:  # the configured version has no such field
        version(temperature=0.2, extra={"api_version": "2026-10-21"})
    assert refused.value.field == "temperature"
    assert sent("anthropic", temperature=1.7)["temperature"] == 1.0


@pytest.mark.parametrize(
    ("fields", "anthropic", "gemini", "bedrock"),
    [
        ({"tool_choice": "required"}, {"type": "any"}, {"mode": "ANY"}, {"any": {}}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
            {"type": "tool", "name": "weather"},
            {"mode": "ANY", "allowedFunctionNames": ["weather"]},
            {"tool": {"name": "weather"}},
        ),
        ({"tool_choice": "none"}, {"type": "none"}, {"mode": "NONE"}, None),
        ({}, None, None, None),
    ],
)
def test_how_tools_are_chosen(fields: dict[str, Any], anthropic: Any, gemini: Any, bedrock: Any) -> None:
    tools = [{"type": "function", "function": WEATHER}]
    assert sent("anthropic", tools=tools, **fields).get("tool_choice") == anthropic
    assert sent("gemini", tools=tools, **fields).get("toolConfig", {}).get("functionCallingConfig") == gemini
    config = sent("bedrock", tools=tools, **fields).get("toolConfig")
    assert (config or {}).get("toolChoice") == bedrock
    assert (config is None) == (fields.get("tool_choice") == "none")


def test_one_call_at_a_time() -> None:
    tools = [{"type": "function", "function": WEATHER}]
    choice = sent("anthropic", tools=tools, parallel_tool_calls=False)["tool_choice"]
    assert choice == {"type": "auto", "disable_parallel_tool_use": True}
    for kind in ("gemini", "bedrock"):
        with pytest.raises(Unsupported) as refused:
            prepare(kind, tools=tools, parallel_tool_calls=False)
        assert refused.value.field == "parallel_tool_calls"


def test_older_functions_are_tools() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
        {"role": "function", "name": "weather", "content": "grey"},
    ]
    body = sent("anthropic", messages=messages, functions=[WEATHER], function_call={"name": "weather"})
    assert body["messages"][1]["content"] == [{"type": "tool_use", "id": "weather", "name": "weather", "input": {}}]
    assert body["messages"][2]["content"][0]["tool_use_id"] == "weather"
    assert body["tool_choice"] == {"type": "tool", "name": "weather"}


def test_effort() -> None:
    assert sent("anthropic", reasoning_effort="none")["thinking"] == {"type": "disabled"}
    assert sent("anthropic", reasoning_effort="minimal")["output_config"] == {"effort": "low"}
    assert sent("gemini", reasoning_effort="none")["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 0}
    old = sent("gemini", reasoning_effort="low", upstream_model="gemini-2.5-flash")
    assert old["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 1024, "includeThoughts": True}
    assert sent("bedrock", reasoning_effort="low")["outputConfig"] == {"effort": "low"}
    assert sent("bedrock", reasoning_effort="none", top_k=3)["additionalModelRequestFields"] == {
        "top_k": 3,
        "thinking": {"type": "disabled"},
    }


def test_pictures_by_url_and_documents() -> None:
    def content(part: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [part]}]

    url = content({"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}})
    assert sent("anthropic", messages=url)["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}
    ]
    for kind in ("gemini", "bedrock"):
        with pytest.raises(Unsupported) as refused:
            prepare(kind, messages=url)
        assert refused.value.field == "messages[0].content[0].image_url"
    file = content({"type": "file", "file": {"filename": "a_b.pdf", "file_data": PDF}})
    assert sent("anthropic", messages=file)["messages"][0]["content"][0]["type"] == "document"
    document = sent("bedrock", messages=file)["messages"][0]["content"][0]["document"]
    assert document == {"format": "pdf", "name": "a b pdf", "source": {"bytes": "JVBERi0="}}
    assert sent("gemini", messages=file)["contents"][0]["parts"][0]["inlineData"]["mimeType"] == "application/pdf"


def test_an_answer_the_caller_began_is_continued() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, \n"}]
    assert sent("anthropic", messages=messages)["messages"][1]["content"] == [{"type": "text", "text": "Well,"}]


def test_a_history_of_another_model_is_let_through_by_gemini() -> None:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    parts = sent("gemini", messages=messages)["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == ["skip_thought_signature_validator", None]


ALL = ("anthropic", "gemini", "bedrock")


def picture(url: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


@pytest.mark.parametrize(
    ("kinds", "fields", "name"),
    [
        (ALL, {"n": 2}, "n"),
        (ALL, {"logprobs": True}, "logprobs"),
        (ALL, {"logit_bias": {"5": 1}}, "logit_bias"),
        (ALL, {"prediction": {"type": "content"}}, "prediction"),
        (ALL, {"modalities": ["text", "audio"]}, "modalities"),
        (ALL, {"web_search_options": {}}, "web_search_options"),
        (ALL, {"min_p": 0.1}, "min_p"),
        (ALL, {"guided_json": {"type": "object"}}, "guided_json"),
        (ALL, {"some_new_field": 1}, "some_new_field"),
        (ALL, {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        (("anthropic", "bedrock"), {"seed": 7}, "seed"),
        (("anthropic", "bedrock"), {"presence_penalty": 0.5}, "presence_penalty"),
        (("anthropic", "bedrock"), {"response_format": {"type": "json_object"}}, "response_format"),
        (ALL, {"response_format": {"type": "grammar"}}, "response_format"),
        (ALL, {"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        (ALL, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (("anthropic", "gemini"), {"reasoning_effort": "enormous"}, "reasoning_effort"),
        (ALL, {"temperature": "hot"}, "temperature"),
        (ALL, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        (ALL, {"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        (ALL, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (ALL, {"messages": [{"role": "system", "content": "x"}]}, "messages"),
        (("anthropic", "bedrock"), {"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        (
            ALL,
            {
                "messages": [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]},
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
        (("gemini",), {"messages": [{"role": "tool", "tool_call_id": "a"}]}, "messages[0].tool_call_id"),
        (
            ("anthropic", "bedrock"),
            picture("data:image/tiff;base64,x"),
            "messages[0].content[0].image_url",
        ),
        (
            ALL,
            picture("data:image/png,x"),
            "messages[0].content[0].image_url",
        ),
        (
            ALL,
            picture("file:///etc/passwd"),
            "messages[0].content[0].image_url",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_by_name(kinds: tuple[str, ...], fields: dict[str, Any], name: str) -> None:
    for kind in kinds:
        with pytest.raises(Unsupported) as refused:
            prepare(kind, **fields)
        assert refused.value.field == name, kind
        assert name.removesuffix(".type") in str(refused.value) or "user message" in str(refused.value)


def test_gemini_takes_what_the_others_do_not() -> None:
    config = sent("gemini", seed=7, presence_penalty=0.5, frequency_penalty=0.1, top_k=3)["generationConfig"]
    assert config == {"seed": 7, "presencePenalty": 0.5, "frequencyPenalty": 0.1, "topK": 3}
    config = sent("gemini", response_format={"type": "json_object"})["generationConfig"]
    assert config == {"responseMimeType": "application/json"}
    assert "generationConfig" not in sent("gemini", presence_penalty=0)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("endpoint", [Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS])
def test_other_endpoints_are_refused(kind: str, endpoint: Endpoint) -> None:
    with pytest.raises(Unsupported) as refused:
        prepare(kind, endpoint=endpoint, prompt="hi", input="hi")
    assert refused.value.field == "endpoint"


@pytest.mark.parametrize(
    ("kind", "base_url", "fields", "path"),
    [
        ("anthropic", None, {}, "/v1/messages"),
        ("anthropic", "https://proxy.test/anthropic/v1", {"stream": True}, "/anthropic/v1/messages"),
        ("gemini", None, {}, "/v1beta/models/upstream-model:generateContent"),
        ("gemini", None, {"stream": True}, "/v1beta/models/upstream-model:streamGenerateContent?alt=sse"),
        ("gemini", None, {"upstream_model": "tunedModels/x y"}, "/v1beta/tunedModels/x%20y:generateContent"),
        (
            "gemini",
            "https://eu-aiplatform.googleapis.com/v1beta1/projects/p/locations/eu/publishers/google",
            {},
            "/v1beta1/projects/p/locations/eu/publishers/google/models/upstream-model:generateContent",
        ),
        ("bedrock", None, {"upstream_model": "a.b-v1:0"}, "/model/a.b-v1%3A0/converse"),
        ("bedrock", None, {"upstream_model": "arn:x/y", "stream": True}, "/model/arn%3Ax%2Fy/converse-stream"),
        ("bedrock", None, {"gather": True}, "/model/upstream-model/converse-stream"),
    ],
)
def test_paths(kind: str, base_url: str | None, fields: dict[str, Any], path: str) -> None:
    outgoing = prepare(kind, base_url, **fields)
    assert outgoing.url_path == path
    assert outgoing.streams == bool(fields.get("stream") or fields.get("gather"))


def test_a_gathered_call_streams() -> None:
    assert sent("anthropic", gather=True)["stream"] is True
    assert "stream" not in sent("anthropic")


@pytest.mark.parametrize(
    ("kind", "base_url", "credential", "header"),
    [
        ("anthropic", None, "sk-ant", ("x-api-key", "sk-ant")),
        ("gemini", None, "AIza", ("x-goog-api-key", "AIza")),
        ("gemini", None, "ya29.token", ("authorization", "Bearer ya29.token")),
        ("gemini", "https://eu-aiplatform.googleapis.com/v1/x", "token", ("authorization", "Bearer token")),
        ("bedrock", None, "bedrock-api-key", ("authorization", "Bearer bedrock-api-key")),
    ],
)
def test_credentials(kind: str, base_url: str | None, credential: str, header: tuple[str, str]) -> None:
    assert header in prepare(kind, base_url, credential=credential).headers
    assert header[0] not in dict(prepare(kind, base_url, credential=None).headers)


KEYS = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
SIGNATURE = "db6fc6cf312fe1eaffd11e067e0e02b899286aae8bbecaccae117676bee3f409"


def test_a_known_request_has_its_known_signature() -> None:
    headers = sign(
        KEYS,
        method="POST",
        host="bedrock-runtime.us-east-1.amazonaws.com",
        path="/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse",
        headers=(("content-type", "application/json"),),
        body=b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}',
        region="us-east-1",
        service="bedrock",
        at=1767323045,
    )
    assert dict(headers)["x-amz-date"] == "20260102T030405Z"
    assert dict(headers)["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260102/us-east-1/bedrock/aws4_request, "
        f"SignedHeaders=content-type;host;x-amz-date, Signature={SIGNATURE}"
    )


def test_a_request_is_signed_for_its_moment() -> None:
    credential = f"{KEYS.access_key_id}:{KEYS.secret_access_key}"
    outgoing = prepare(
        "bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com", upstream_model=MODEL, credential=credential
    )
    assert outgoing.body == b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}'
    assert dict(outgoing.headers)["authorization"].endswith(SIGNATURE)
    other = prepare("bedrock", credential=credential, extra={"region": "eu-west-1"}, upstream_model=MODEL)
    assert "/eu-west-1/bedrock/aws4_request" in dict(other.headers)["authorization"]


def test_a_session_token_is_sent_and_signed() -> None:
    headers = dict(prepare("bedrock", credential="AKID:secret:to/ken:x==").headers)
    assert headers["x-amz-security-token"] == "to/ken:x=="
    assert "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token," in headers["authorization"]


@pytest.mark.parametrize(
    ("base_url", "version", "path"),
    [
        ("https://r.openai.azure.com", None, "/openai/v1/chat/completions"),
        ("https://r.openai.azure.com/openai/v1/", None, "/openai/v1/chat/completions"),
        (
            "https://r.openai.azure.com",
            "2024-10-21",
            "/openai/deployments/my%20dep/chat/completions?api-version=2024-10-21",
        ),
        (
            "https://r.openai.azure.com/openai/v1",
            "2025-03-01-preview",
            "/openai/deployments/my%20dep/chat/completions?api-version=2025-03-01-preview",
        ),
    ],
)
def test_azures_two_kinds_of_path(base_url: str, version: str | None, path: str) -> None:
    extra = {} if version is None else {"api_version": version}
    assert prepare("azure", base_url, upstream_model="my dep", extra=extra).url_path == path


def test_azures_two_kinds_of_credential() -> None:
    base = "https://r.openai.azure.com"
    assert ("api-key", "abc") in prepare("azure", base, credential="abc").headers
    token = "eyJhbGci.eyJzdWIi.c2ln"
    assert ("authorization", f"Bearer {token}") in prepare("azure", base, credential=token).headers


def test_azures_older_versions_are_sent_only_what_they_know() -> None:
    base = "https://r.openai.azure.com"
    body = orjson.loads(
        prepare("azure", base, stream=True, max_completion_tokens=5, extra={"api_version": "2024-06-01"}).body
    )
    assert (body["max_tokens"], "stream_options" in body, "max_completion_tokens" in body) == (5, False, False)
    body = orjson.loads(prepare("azure", base, stream=True, max_tokens=5, extra={"api_version": "2024-10-21"}).body)
    assert (body["max_completion_tokens"], body["stream_options"]) == (5, {"include_usage": True})
