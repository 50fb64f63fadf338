"""Azure OpenAI, the v1 API and the dated ones.

Both speak OpenAI's dialect. The v1 API is OpenAI's with another root; a dated one has the deployment in its path, the
date in its query, and knows only the fields of its time. What Azure adds to streams (chunks of its content filter) is
taken out by the stream reader, as it would be for any upstream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import quote

from providers.engines import FACTS, Facts
from providers.exchange import Call, Endpoint, Upstream
from providers.openai import PATHS, OpenAIKind, root_path

_KNOWS_USAGE = "2024-09-01"
"""The first version that knows `stream_options` and `max_completion_tokens`."""


_KNOWS_RESPONSES = "2025-03-01"
_BEFORE_RESPONSES = replace(FACTS["azure"], endpoints=FACTS["azure"].endpoints - {Endpoint.RESPONSES})


def _date(version: str) -> str:
    """The date of a version such as 2024-10-21 or 2025-03-01-preview: these compare as text."""
    return version[:10]


@dataclass(frozen=True, slots=True)
class AzureKind(OpenAIKind):
    """Azure OpenAI; `extra["api_version"]` chooses a dated API."""

    def path(self, call: Call, upstream: Upstream) -> str:
        """Path and query of the call."""
        version = upstream.extra.get("api_version")
        if version is None:
            return root_path(upstream.base_url, "/openai/v1") + PATHS[call.endpoint]
        root = root_path(upstream.base_url, "").removesuffix("/v1").removesuffix("/openai")
        if call.endpoint is Endpoint.RESPONSES:
            return f"{root}/openai/responses?api-version={quote(version, safe='')}"
        deployment = quote(upstream.model, safe="")
        return f"{root}/openai/deployments/{deployment}{PATHS[call.endpoint]}?api-version={quote(version, safe='')}"

    def credential(self, upstream: Upstream) -> tuple[tuple[str, str], ...]:
        """A key of the resource, or a token of its directory (which is a JWT)."""
        if upstream.credential is None:
            return ()
        if upstream.credential.startswith("eyJ") and upstream.credential.count(".") == 2:
            return (("authorization", f"Bearer {upstream.credential}"),)
        return (("api-key", upstream.credential),)

    def dialect(self, upstream: Upstream) -> Facts:
        """What the API of the chosen date can do."""
        version = upstream.extra.get("api_version")
        if version is None or _date(version) >= _KNOWS_RESPONSES:
            return FACTS[self.name]
        if _date(version) >= _KNOWS_USAGE:
            return _BEFORE_RESPONSES
        return Facts(
            engine=False,
            stream_options=False,
            output_cap="max_tokens",
            extras=False,
            endpoints=frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS}),
        )
