"""Generated pages are current, links lead somewhere, examples are valid; and each rule finds an offender."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from tests.docs import generated, rules
from tests.style.sources import ROOT

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text() for path in (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"))
}


@pytest.mark.parametrize("path", generated.pages())
def test_a_generated_page_is_current(path: str) -> None:
    assert (ROOT / path).read_text() == generated.pages()[path](), "run: python -m tests.docs"


def test_every_link_to_a_heading_leads_somewhere() -> None:
    assert rules.broken_anchors(PAGES) == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_valid_links_and_examples(path: str) -> None:
    assert rules.malformed_urls(path, PAGES[path]) == []
    assert rules.broken_examples(path, PAGES[path]) == []
    assert rules.unknown_extras(path, PAGES[path]) == []


WORD = '50%s of \\t "it"'  # a password


@pytest.mark.parametrize("path", [path for path in PAGES if "printf " in PAGES[path]])
def test_a_password_is_written_as_it_is(path: str) -> None:
    """Let `printf`, or TOML, take it for more than text: a program is refused with the password that it was given."""
    commands = re.findall(r"(printf .*) > \S*(secrets.toml|password)$", PAGES[path], re.MULTILINE)
    assert commands
    for command, kind in commands:
        line = ["sh", "-c", command.replace("…", WORD)]
        written = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        if kind == "secrets.toml":
            (table,) = tomllib.loads(written).values()
            written = table["sasl.password"]
        assert written == WORD, command


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.removeprefix("docs/") for path in PAGES if path.startswith("docs/")}
    assert {page for page in pages if not page.startswith("decisions/0")} == listed


def test_every_page_is_in_the_index() -> None:
    listed = {link for link in rules.links(PAGES["docs/index.md"]) if link != "index.md"}
    pages = {path.removeprefix("docs/") for path in PAGES if path.startswith("docs/")} - {"index.md"}
    assert {page for page in pages if not page.startswith("decisions/0")} == listed


def test_decisions_are_numbered_once_and_listed_in_order() -> None:
    listed = re.findall(r"^- \[(\d{4}) (.+)\]\((.+)\)$", PAGES["docs/decisions/README.md"], re.MULTILINE)
    pages = sorted(path for path in PAGES if path.startswith("docs/decisions/0"))
    assert [f"docs/decisions/{file}" for _, _, file in listed] == pages
    assert [int(number) for number, _, _ in listed] == list(range(1, len(pages) + 1))
    for number, title, file in listed:
        assert PAGES[f"docs/decisions/{file}"].startswith(f"# {number} {title}"), file


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nx = (\n```", "python: "),
        ("```python\nfrom consumer_agent import Nobody\n```", "consumer_agent has no Nobody"),
        ("```json\n{'a': 1}\n```", "json: "),
        ("```toml\na = = 1\n```", "toml: "),
        ("```perl\n1\n```", "no check for ```perl"),
        ("```\n$ zkrebalancer groups show g\n```", "zkrebalancer groups has no command show"),
        ("```sh\nzkrebalancer groups describe g --all | cat\n```", "zkrebalancer groups describe has no option --all"),
        ("```\nconsumer-agent run --group g \\\n    --topics t\n```", "consumer-agent run has no option --topics"),
    ],
)
def test_a_broken_example_is_found(text: str, complaint: str) -> None:
    (found,) = rules.broken_examples("a.md", text)
    assert complaint in found


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nzkrebalancer cluster up --broker none &  # --not-an-option\n```",
        "```\nExecStart=/opt/bin/consumer-agent run --group g\n```",
        "  ```json\n  {}\n  ```",
    ],
)
def test_a_valid_example_passes(text: str) -> None:
    assert rules.broken_examples("a.md", text) == []


def test_a_link_to_a_missing_heading_is_found() -> None:
    pages = {
        "a.md": "# One\n[x](#one) [y](b/c.md#two-words) [z](b/c.md#three)",
        "b/c.md": "## Two `words`!\n[up](../a.md#one)",
    }
    assert rules.broken_anchors(pages) == ["a.md: b/c.md#three names no heading"]


def test_an_unknown_extra_is_found() -> None:
    text = "`pip install -e '.[spark,sparks]'` or `pip install 'zkrebalancer[traces]'`"
    assert rules.unknown_extras("a.md", text) == ["a.md: there is no extra sparks"]


def test_a_malformed_address_is_found() -> None:
    text = "[a](https://example.org/x) [b](http://nohost) [c](https:///x)"
    assert rules.malformed_urls("a.md", text) == ["a.md: http://nohost", "a.md: https:///x"]
