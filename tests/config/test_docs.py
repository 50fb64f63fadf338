"""The page about the config says what the code does, and the example on it works."""

from __future__ import annotations

import re
from pathlib import Path

from gateway import config, settings_doc
from tests.config.files import ENVIRON

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert page == settings_doc.document(), "run: python -m gateway.settings_doc > docs/configuration.md"


def test_every_key_is_explained() -> None:
    rows = [line for line in settings_doc.document().splitlines() if line.startswith("| `")]
    assert len(rows) > 130
    assert [row for row in rows if row.rstrip("| ").endswith(("none", "required", "empty"))] == []


def test_links_lead_to_sections() -> None:
    page = settings_doc.document()
    anchors = {re.sub(r"[^a-z0-9_-]", "", line[3:].lower()) for line in page.splitlines() if line.startswith("## ")}
    links = set(re.findall(r"\]\(#([^)]*)\)", page))
    assert links
    assert links <= anchors


def test_the_example_has_neither_errors_nor_warnings() -> None:
    environ = {**ENVIRON, "WEIGHBRIDGE_ADMIN_KEY": "0123456789abcdef", "AZURE_KEY": "k"}
    loaded = config.read(DOCS / "config.example.yaml", environ)
    assert loaded.warnings == ()
    assert loaded.config.listen.port == 8080
    assert config.read(DOCS / "config.example.yaml", {**environ, "PORT": "9090"}).config.listen.port == 9090
