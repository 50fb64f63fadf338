"""The command line: what `check` prints and how it ends, and keys that the config accepts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway import config, keys, principals
from gateway.cli import app
from tests.config.files import ENVIRON, GOOD

POOL = 'pools: {p: {kind: vllm, replicas: [{name: a, url: "http://10.0.0.1:8000"}]}}\n'
MODEL = "models: {m: {context: 4096, tiers: [{targets: [{pool: p, model: x}]}]}}\n"


def run(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, arguments, env=environ or {})


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


def test_a_good_file_and_the_limits_in_force(good: Path) -> None:
    result = run("check", str(good), environ=ENVIRON)
    assert (result.exit_code, result.stderr) == (0, "")
    first, *rest = result.stdout.splitlines()
    assert first == f"{good}: OK, version {config.load(good, ENVIRON).digest()}"
    assert rest == [
        "pools    local (vllm, 2 replicas), vendor (openai, account)",
        "models   chat-large = gpt-4o",
        "tenants  2 tenants, 1 key",
        "limits   4 in force: 1 by organisation, 3 by tenant",
        "         organisation acme-corp: 500 USD/month",
        "         tenant acme: 600 requests/min",
        "         tenant acme: 90,000 tokens/min",
        "         tenant acme: 50 at once",
    ]


def test_every_kind_and_level_of_limit_is_listed(tmp_path: Path) -> None:
    figures = (
        "{requests_per_minute: 60, input_tokens_per_minute: 1000, output_tokens_per_minute: 500, "
        "total_tokens_per_minute: 1200, concurrency: 5, usd_per_day: 1.5, usd_per_month: 20}"
    )
    text = (
        POOL
        + "models: {m: {context: 4096, prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}, "
        + f"tiers: [{{targets: [{{pool: p, model: x}}]}}], limits: {figures}}}}}\n"
        + f"organisations: {{o: {{limits: {figures}}}}}\n"
        + f"tenants: {{t: {{organisation: o, limits: {figures}, model_limits: {{m: {figures}}}, "
        + f'keys: [{{id: k, hash: "sha256:{"0" * 64}", limits: {figures}}}]}}}}\n'
    )
    path = tmp_path / "all.yaml"
    path.write_text(text)
    lines = run("check", str(path)).stdout.splitlines()[5:]
    # Nothing that is written is left out of what is enforced: 5 levels of 7 limits.
    assert len(lines) == len(set(lines)) == 35
    for who in ("organisation o", "tenant t", "tenant t on m", "key k", "model m"):
        assert [line.split(": ")[1] for line in lines if line.strip().startswith(f"{who}:")] == [
            "60 requests/min",
            "1,000 input tokens/min",
            "500 output tokens/min",
            "1,200 tokens/min",
            "5 at once",
            "1.5 USD/day",
            "20 USD/month",
        ]


def test_burst_exact_and_shadow_are_told(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        POOL + MODEL + "tenants: {t: {limits: {requests_per_minute: 90, burst_s: 10, exact: true, shadow: true}}}\n"
    )
    assert run("check", str(path)).stdout.splitlines()[-1].strip() == (
        "tenant t: 90 requests/min (burst 15, exact, shadow: refuses nothing)"
    )


def test_many_limits_are_counted(tmp_path: Path) -> None:
    tenants = "".join(f"  t{number}: {{limits: {{concurrency: 5}}}}\n" for number in range(50))
    path = tmp_path / "c.yaml"
    path.write_text(POOL + MODEL + "tenants:\n" + tenants)
    assert run("check", str(path)).stdout.splitlines()[-1].strip() == "… and 10 more"
    assert run("check", "--all", str(path)).stdout.splitlines()[-1].strip() == "tenant t49: 5 at once"


def test_without_limits_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(POOL + MODEL)
    assert run("check", str(path)).stdout.splitlines()[-1] == "limits   none in force: nobody is limited"


def test_errors_read_like_a_compilers(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("listen:\n  prot: 1\n" + POOL.replace("vllm", "vlm") + MODEL)
    result = run("check", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"{path}:2: listen.prot: unknown key; did you mean 'port'? one of: host, port, max_body_bytes, "
        "body_timeout_ms, drain_s, tls, server",
        f"{path}:3: pools.p.kind: 'vlm' is not a kind; did you mean 'vllm'? one of: simulated, vllm, sglang, llamacpp, "
        "ollama, tgi, trtllm, openai, azure, anthropic, gemini, gemini-openai, bedrock, openai-compatible",
        f"{path}: 2 errors",
    ]


def test_warnings_are_told_and_do_not_fail(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("admin: {host: 0.0.0.0}\n" + POOL + MODEL)
    result = run("check", str(path))
    assert result.exit_code == 0
    assert result.stderr.startswith(f"{path}:1: warning: admin.host: '0.0.0.0' can be reached")
    assert ": OK, version " in result.stdout


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "no.yaml"))
    assert result.exit_code == 1
    assert "no.yaml: cannot be read: No such file or directory" in result.stderr


def test_serve_refuses_a_bad_file_before_it_builds_anything(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("pools: {}\n")
    result = run("serve", "--config", str(path))
    assert result.exit_code == 1
    assert "c.yaml:1: pools: none is defined" in result.stderr


def test_a_minted_key_works_with_the_hash_beside_it(tmp_path: Path) -> None:
    result = run("keys", "mint", "--id", "k7")
    key, entry = result.stdout.splitlines()
    assert keys.parse(key) == keys.ParsedKey("k7")
    path = tmp_path / "c.yaml"
    path.write_text(f"{POOL}{MODEL}tenants:\n  t:\n    keys:\n      {entry}\n")
    found = principals.directory(config.load(path, {}), lambda: 0.0).find(key)
    assert found is not None
    assert (found.tenant, found.key_id) == ("t", "k7")


def test_a_peppered_key(tmp_path: Path) -> None:
    result = run("keys", "mint", "--pepper-env", "PEPPER", environ={"PEPPER": "salt-and-pepper"})
    key, entry = result.stdout.splitlines()
    path = tmp_path / "c.yaml"
    path.write_text(f"{POOL}{MODEL}key_peppers: [${{PEPPER}}]\ntenants:\n  t:\n    keys:\n      {entry}\n")
    for pepper, found in (("salt-and-pepper", True), ("other", False)):
        loaded = config.load(path, {"PEPPER": pepper})
        assert (principals.directory(loaded, lambda: 0.0).find(key) is not None) == found


def test_two_minted_keys_differ() -> None:
    one, two = (run("keys", "mint").stdout.splitlines()[0] for _ in range(2))
    assert one != two
    assert one.split("_")[1] != two.split("_")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--id", "K-1"), "a key id is 1 to 16 of a-z and 0-9"), (("--pepper-env", "NOT_SET"), "NOT_SET is not set")],
)
def test_a_key_that_cannot_be_minted(arguments: tuple[str, ...], said: str) -> None:
    result = run("keys", "mint", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_verbs_in_their_own_files_are_listed_and_loaded() -> None:
    listed = run("--help").stdout
    for verb in ("check", "serve", "demo", "simulate", "replay", "keys"):
        assert verb in listed
    assert run("simulate", "--help").exit_code == 0
    assert run("replay", "--help").exit_code == 0


def test_simulate_says_what_is_wrong() -> None:
    result = run("simulate", "--preset", "tiny")
    assert result.exit_code == 2
    assert "no engine preset is called 'tiny'" in " ".join(result.stderr.split())


def test_check_loads_nothing_that_serves(good: Path) -> None:
    """Fast to start, and usable where the server's libraries are not."""
    code = (
        "import sys\nfrom gateway.cli import app\n"
        f"app(['check', {str(good)!r}], standalone_mode=False)\n"
        "bad = [name for name in sys.modules if name.split('.')[0] in "
        "('aiohttp', 'uvloop', 'redis', 'opentelemetry', 'httptools', 'prometheus_client')]\n"
        "bad += [name for name in ('gateway.app', 'gateway.demo', 'gateway.lifecycle') if name in sys.modules]\n"
        "assert not bad, bad\n"
    )
    root = str(Path(__file__).parents[2])
    result = subprocess.run(
        [sys.executable, "-c", code], env={**ENVIRON, "PYTHONPATH": root}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_module_is_the_command(good: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gateway", "check", str(good)],
        env={**ENVIRON, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "OK, version" in result.stdout
