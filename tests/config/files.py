"""Config texts that tests start from."""

from __future__ import annotations

from gateway import config

ENVIRON = {"ADMIN_KEY": "adm-0123456789abcdef", "OPENAI_KEY": "sk-canary-0123456789"}

GOOD = """\
listen: {host: 127.0.0.1, port: 8080}
admin: {host: 127.0.0.1, port: 8081, key: ${ADMIN_KEY}}
pools:
  local:
    kind: vllm
    replicas:
      - {name: a, url: "http://10.0.0.1:8000"}
      - {name: b, url: "http://10.0.0.2:8000"}
  vendor:
    kind: openai
    account:
      credentials:
        - {name: main, key: "${OPENAI_KEY}"}
models:
  chat-large:
    context: 32768
    aliases: [gpt-4o]
    tiers:
      - targets: [{pool: local, model: llama-70b}]
      - targets: [{pool: vendor, model: gpt-4o}]
    prices: {input_usd_per_mtok: 0.5, output_usd_per_mtok: 1.5}
organisations:
  acme-corp: {limits: {usd_per_month: 500}}
tenants:
  acme:
    organisation: acme-corp
    weight: 2
    limits: {requests_per_minute: 600, total_tokens_per_minute: 90000, concurrency: 50}
    keys:
      - {id: k1, hash: "sha256:0000000000000000000000000000000000000000000000000000000000000001"}
  quiet:
    class: batch
    models: [gpt-4o]
"""


def good(text: str = GOOD) -> config.Config:
    """The config in `text`, which must have neither errors nor warnings."""
    loaded = config.parse(text, "good.yaml", ENVIRON)
    assert loaded.warnings == ()
    return loaded.config


def complaints(text: str, environ: dict[str, str] | None = None) -> list[str]:
    """What is said about `text`: errors and warnings, without the file's name."""
    try:
        problems = config.parse(text, "c", ENVIRON if environ is None else environ).warnings
    except config.ConfigErrors as errors:
        problems = errors.problems
    return [str(problem).removeprefix("c:") for problem in problems]
