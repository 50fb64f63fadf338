"""A broken example for each check of the config, and the exact message an operator sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway import config, config_rules, yaml_tree
from gateway.config_finding import Rule
from gateway.settings import Config

FOLDER = Path(__file__).parent.parent / "bad_configs"
FILES = sorted(FOLDER.glob("*.yaml"))
ENVIRON = {"EMPTY": "", "SECRET": "sk-canary"}


def said_about(path: Path) -> list[str]:
    try:
        problems = config.read(path, ENVIRON).warnings
    except config.ConfigErrors as errors:
        problems = errors.problems
    return [str(problem).removeprefix(f"{path}:") for problem in problems]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_exact_message(path: Path) -> None:
    expected = [line[3:] for line in path.read_text().splitlines() if line.startswith("#! ")]
    assert expected, "the file says nothing about what is wrong with it"
    assert said_about(path) == expected


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_errors_end_the_reading_and_warnings_do_not(path: Path) -> None:
    expected = [line for line in path.read_text().splitlines() if line.startswith("#! ")]
    if all(": warning: " in line for line in expected):
        assert len(config.read(path, ENVIRON).warnings) == len(expected)
    else:
        with pytest.raises(config.ConfigErrors) as caught:
            config.load(path, ENVIRON)
        assert str(caught.value).count("\n") == len(expected) - 1


@pytest.mark.parametrize("rule", config_rules.RULES, ids=[rule.check.__name__ for rule in config_rules.RULES])
def test_every_rule_has_a_file(rule: Rule) -> None:
    if rule.check.__name__ == "kinds":
        pytest.skip("depends on what this version can speak to: test_rules.py")
    for path in FILES:
        tree = yaml_tree.read(path.read_text(), ENVIRON)
        try:
            found = list(rule.check(Config.model_validate(tree.value)))
        except ValidationError:
            continue
        if found:
            return
    pytest.fail("no file breaks this rule")


def test_no_secret_is_shown() -> None:
    """Keys in right and wrong places, in every form: none may come out again."""
    shown = "\n".join(line for path in FILES for line in said_about(path))
    for secret in ("canary", "hunter2", "sk-", "0123456789abcdef", "12345678"):
        assert secret not in shown.replace("sk-or", "")
