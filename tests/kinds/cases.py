"""The upstreams these tests speak to: every kind, and the faces of those that have several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from providers.engines import FACTS
from providers.sigv4 import Keys, sign
from tests.kinds.upstream import Seen

SECRET = "secret-of-ours"
AWS = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", "session/token==")
MODEL = "upstream-model"
REGION = "eu-west-1"


@dataclass(frozen=True, slots=True)
class Case:
    """One upstream as it is configured, and how it must be asked."""

    name: str
    kind: str
    path: str
    """Of a chat call that does not stream."""
    authorised: Callable[[Seen], bool]
    servers: bool = False
    """Replicas of our own instead of an account."""
    account: str = ""
    """More of the account, as YAML."""
    root: str = ""
    """The path of its base URL."""
    credential: str = f"key: {SECRET}"
    streamed: str = ""
    """Path of a call that streams, if that is another."""
    more: str = ""
    """More of the pool, as YAML."""
    note: str = ""
    """For the table of the docs; a case without one has no row of its own."""

    @property
    def model(self) -> str:
        """The public model that is served there."""
        return f"m-{self.name}"

    @property
    def engine(self) -> bool:
        """Ours: closed at once when a client leaves."""
        return self.servers or FACTS[self.kind].engine

    def pool(self, url: str) -> str:
        """Its pool as YAML."""
        where = f"account: {{url: '{url}{self.root}', {self.account}credentials: [{{name: main, {self.credential}}}]}}"
        if self.servers or FACTS[self.kind].engine:
            where = f"key: {SECRET}, poll_ms: 60000, replicas: [{{name: r0, url: '{url}{self.root}'}}]"
        return (
            f"  {self.name}: {{kind: {self.kind}, {where}, {self.more}capacity: {{seats: 64}}, slo: {{ttft_ms: 900}}, "
            "timeouts: {connect_ms: 400, first_token_ms: 1500, stall_ms: 600, total_ms: 20000}}"
        )


def _header(name: str, value: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.headers.get(name) == value


_bearer = _header("authorization", f"Bearer {SECRET}")


def _signed(seen: Seen) -> bool:
    """Whether the request bears exactly the signature its own bytes ask for."""
    date = seen.headers.get("x-amz-date", "")
    at = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    fields = dict(
        sign(
            AWS,
            method=seen.method,
            host=seen.headers["host"],
            path=seen.target,
            headers=(("content-type", "application/json"),),
            body=seen.raw,
            region=REGION,
            service="bedrock",
            at=int(at.timestamp()),
        )
    )
    names = ("authorization", "x-amz-security-token")
    return all(seen.headers.get(name) == fields[name] for name in names)


_CHAT = "/v1/chat/completions"
_GEMINI = f"/v1beta/models/{MODEL}"
_DEPLOYED = f"/openai/deployments/{MODEL}/chat/completions"
_CONVERSE = f"/model/{quote(MODEL, safe='')}/converse"

CASES: tuple[Case, ...] = (
    Case("vllm", "vllm", _CHAT, _bearer, note="vLLM"),
    Case("sglang", "sglang", _CHAT, _bearer, note="SGLang"),
    Case("llamacpp", "llamacpp", _CHAT, _bearer, note="llama.cpp"),
    Case("ollama", "ollama", _CHAT, _bearer, note="Ollama"),
    Case("tgi", "tgi", _CHAT, _bearer, note="Text Generation Inference"),
    Case("trtllm", "trtllm", _CHAT, _bearer, note="TensorRT-LLM"),
    Case("openai", "openai", _CHAT, _bearer, root="/v1", account="organization: org-1, ", note="OpenAI"),
    Case("azure", "azure", "/openai/v1/chat/completions", _header("api-key", SECRET), note="Azure OpenAI, v1 API"),
    Case(
        "azure-dated",
        "azure",
        _DEPLOYED,
        _header("api-key", SECRET),
        account="api_version: '2024-10-21', ",
        note="Azure OpenAI, dated API",
    ),
    Case(
        "azure-old",
        "azure",
        _DEPLOYED,
        _header("api-key", SECRET),
        account="api_version: '2024-06-01', ",
    ),
    Case("anthropic", "anthropic", "/v1/messages", _header("x-api-key", SECRET), note="Anthropic"),
    Case(
        "gemini",
        "gemini",
        f"{_GEMINI}:generateContent",
        _header("x-goog-api-key", SECRET),
        streamed=f"{_GEMINI}:streamGenerateContent",
        note="Gemini",
    ),
    Case(
        "gemini-openai",
        "gemini-openai",
        "/v1beta/openai/chat/completions",
        _bearer,
        root="/v1beta/openai",
        note="Gemini, OpenAI-compatible",
    ),
    Case(
        "bedrock",
        "bedrock",
        _CONVERSE,
        _signed,
        account=f"region: {REGION}, ",
        credential=(
            f"access_key_id: {AWS.access_key_id}, key: {AWS.secret_access_key}, session_token: {AWS.session_token}"
        ),
        streamed=f"{_CONVERSE}-stream",
        note="Amazon Bedrock, Converse",
    ),
    Case(
        "bedrock-key",
        "bedrock",
        _CONVERSE,
        _bearer,
        account=f"region: {REGION}, ",
        streamed=f"{_CONVERSE}-stream",
    ),
    Case("compatible", "openai-compatible", _CHAT, _bearer, root="/v1", note="any OpenAI-compatible account"),
    Case("compatible-servers", "openai-compatible", _CHAT, _bearer, root="/v1", servers=True),
)
BY_NAME = {case.name: case for case in CASES}
