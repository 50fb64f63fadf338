"""Reading: what a good file means, how the environment gets in, and that a bad file changes nothing."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway import config, yaml_tree
from tests.config.files import ENVIRON, GOOD, complaints, good

POOL = 'pools: {p: {kind: vllm, replicas: [{name: a, url: "http://10.0.0.1:8000"}]}}\n'
MODEL = "models: {m: {context: 4096, tiers: [{targets: [{pool: p, model: x}]}]}}\n"


def test_a_good_file_by_value() -> None:
    found = good()
    assert (found.listen.host, found.listen.port, found.listen.max_body_bytes) == ("127.0.0.1", 8080, 33_554_432)
    assert found.admin.key is not None
    assert found.admin.key.get_secret_value() == "adm-0123456789abcdef"
    assert found.pools["local"].addresses() == (("a", "http://10.0.0.1:8000"), ("b", "http://10.0.0.2:8000"))
    assert found.pools["vendor"].addresses() == (("account", "https://api.openai.com/v1"),)
    assert found.pools["vendor"].secrets() == (("main", "sk-canary-0123456789"),)
    assert found.names() == {"chat-large": "chat-large", "gpt-4o": "chat-large"}
    assert [[target.pool for target in tier.targets] for tier in found.models["chat-large"].tiers] == [
        ["local"],
        ["vendor"],
    ]
    assert (found.classes.interactive.weight, found.classes.batch.queue_timeout_ms) == (100, 600_000)
    assert (found.tenants["acme"].request_class, found.tenants["quiet"].request_class) == ("interactive", "batch")
    assert found.tenants["acme"].keys[0].id == "k1"
    assert found.failover.max_attempts == 3


def test_nothing_can_be_changed() -> None:
    found = good()
    with pytest.raises(ValidationError):
        found.listen.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        found.tenants["x"] = found.tenants["acme"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        found.models["chat-large"].tiers.append(None)  # type: ignore[attr-defined]


def test_secrets_stay_hidden() -> None:
    found = good()
    for text in (repr(found), str(found), f"{found.pools!r}", str(found.model_dump(mode="python"))):
        assert "sk-canary" not in text
        assert "adm-0123" not in text


def test_flow_mappings_take_references() -> None:
    """`${NAME}` holds braces, which a flow mapping gives a meaning of its own."""
    text = "admin: {host: 127.0.0.1, key: ${ADMIN_KEY}, port: ${ADMIN_PORT:-9001}}\n" + POOL + MODEL
    found = config.parse(text, environ=ENVIRON).config
    assert found.admin.port == 9001
    assert found.admin.key is not None
    assert found.admin.key.get_secret_value() == ENVIRON["ADMIN_KEY"]


@pytest.mark.parametrize(
    ("written", "environ", "read"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("${A:-d}", {"A": "x"}, "x"),
        ("${A:-d}", {}, "d"),
        ("${A:-d}", {"A": ""}, "d"),
        ('"${A:-}"', {}, ""),
        ("${A:-}", {}, None),
        ("pre-${A}-${B:-two}-post", {"A": "one"}, "pre-one-two-post"),
        ("$${A}", {"A": "x"}, "${A}"),
        ("'$${A} ${A}'", {"A": "x"}, "${A} x"),
        ("$A $ {A}", {"A": "x"}, "$A $ {A}"),
        # A value from outside is text: it cannot open a mapping, a comment or another reference.
        ("${A}", {"A": "{port: 1} # ${A}\nkey: v"}, "{port: 1} # ${A}\nkey: v"),
        ("${A}", {"A": "007"}, "007"),
        ("${A}", {"A": "\ue000\ue010"}, "\ue000\ue010"),
        ("${A:-a: b}", {}, "a: b"),
    ],
)
def test_references(written: str, environ: dict[str, str], read: str | None) -> None:
    tree = yaml_tree.read(f"k: {written}\n", environ)
    assert tree.faults == []
    assert tree.value == {"k": read}


def test_references_in_remarks_are_remarks() -> None:
    assert complaints("# set ${NOT_SET} and ${bad name}\n" + POOL + MODEL) == []


def test_columns_and_lines_survive_references() -> None:
    tree = yaml_tree.read("a: {b: ${A:-xyz}, c: 1}\nd: 2\n", {})
    assert tree.places[("a", "c")] == yaml_tree.Place(1, 19)
    assert tree.places[("d",)] == yaml_tree.Place(2, 1)
    assert tree.places[("a", "b")].source == "${A:-xyz}"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("8080", 8080),
        ("1_000_000", 1_000_000),
        ("010", 10),
        ("8:30", "8:30"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("", None),
        ("0.5", 0.5),
        ("-1.5e+3", -1500.0),
        ('"8080"', "8080"),
        ("2027-01-31", "2027-01-31"),
        ("0x1f", "0x1f"),
        (".nan", ".nan"),
        ("9" * 5000, "9" * 5000),
        ("[a, [b, {c: d}]]", ["a", ["b", {"c": "d"}]]),
    ],
)
def test_scalars_mean_what_people_expect(written: str, read: object) -> None:
    assert yaml_tree.read(f"k: {written}\n", {}).value == {"k": read}


def test_anchors_and_merges() -> None:
    text = """\
pools:
  a: &base
    kind: vllm
    slo: {ttft_ms: 1000}
    replicas: [{name: a, url: "http://10.0.0.1:8000"}]
  b:
    <<: *base
    replicas: [{name: b, url: "http://10.0.0.2:8000"}]
"""
    tree = yaml_tree.read(text, {})
    assert tree.faults == []
    assert tree.value["pools"]["b"]["slo"] == {"ttft_ms": 1000}
    assert tree.value["pools"]["b"]["replicas"][0]["name"] == "b"
    assert tree.places[("pools", "b", "replicas")].line == 8
    assert tree.places[("pools", "b", "kind")].line == 3


def test_an_error_in_an_anchor_is_told_where_it_stands() -> None:
    text = (
        "pools:\n  a: &base\n    kind: vlm\n"
        '    replicas: [{name: a, url: "http://10.0.0.1:8000"}]\n'
        '  b:\n    <<: *base\n    replicas: [{name: b, url: "http://10.0.0.2:8000"}]\n'
    )
    lines = [line.split(" ")[0:2] for line in complaints(text + MODEL) if "kind" in line]
    assert lines == [["3:", "pools.a.kind:"], ["3:", "pools.b.kind:"]]


def test_the_file_itself(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(config.ConfigErrors) as caught:
        config.load(missing)
    assert str(caught.value) == f"{missing}: cannot be read: No such file or directory"
    with pytest.raises(config.ConfigErrors, match="cannot be read: Is a directory"):
        config.load(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"# one\n# \xe9\n")
    with pytest.raises(config.ConfigErrors, match=r"latin\.yaml:2: is not UTF-8 text"):
        config.load(latin)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (yaml_tree.MAX_BYTES + 10))
    with pytest.raises(config.ConfigErrors, match="larger than 1048576 bytes"):
        config.load(large)
    control = tmp_path / "control.yaml"
    control.write_bytes(b"listen:\n  host: a\x01b\n")
    with pytest.raises(config.ConfigErrors, match=r"control\.yaml:2: a character that YAML does not allow \(0x0001\)"):
        config.load(control)
    marked = tmp_path / "marked.yaml"
    marked.write_bytes(b"\xef\xbb\xbf" + (POOL + MODEL).encode())
    assert config.load(marked, {}).models["m"].context == 4096


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WB_TEST_PORT", "9999")
    assert config.parse("listen: {port: ${WB_TEST_PORT}}\n" + POOL + MODEL).config.listen.port == 9999
    assert config.environment("WB_TEST_PORT") == "9999"
    assert config.environment("WB_TEST_NOT_SET") is None


def test_digest_changes_with_every_setting_and_only_then() -> None:
    plain = good().digest()
    assert good().digest() == plain
    assert good("# a remark\n" + GOOD).digest() == plain
    assert good(GOOD.replace("port: 8080", "port: 8082")).digest() != plain
    assert good(GOOD.replace("${OPENAI_KEY}", "another")).digest() != plain
    assert good(GOOD.replace("weight: 2", "weight: 2.5")).digest() != plain
    assert len(plain) == 16
    assert "canary" not in plain


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**12), st.text(max_size=8), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)


@given(st.text(max_size=200))
@settings(max_examples=150)
def test_any_text_gives_a_config_or_errors(text: str) -> None:
    for whole in (text, "listen: " + text, GOOD + text):
        assert all("\n" not in line for line in complaints(whole, {}))


def paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a tree of values."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths(item, (*path, key)))]


EXAMPLE = (Path(__file__).parents[2] / "docs" / "config.example.yaml").read_text()
EVERYWHERE = {"WEIGHBRIDGE_ADMIN_KEY": "k", "AZURE_KEY": "k", **ENVIRON}
PLACES = [path for path in paths(yaml_tree.read(EXAMPLE, EVERYWHERE).value) if path]


@given(st.sampled_from(PLACES), st.one_of(values, st.just("auto")), st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_value_anywhere_gives_a_config_or_errors(path: tuple[str | int, ...], value: object, extra: bool) -> None:
    tree = yaml_tree.read(EXAMPLE, EVERYWHERE).value
    spot = tree
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    if extra and isinstance(spot, dict):
        spot[f"{path[-1]}x"] = value
    try:
        text = orjson.dumps(tree).decode()
    except (TypeError, orjson.JSONEncodeError):
        return
    assert all("\n" not in line for line in complaints(text))
