"""The runbook has a row for every line that a process logs at `warning` or above, and no row for others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "zkrebalancer" / "rebalance"
SHELLS = ("cli", "coordinator", "gateway", "observe", "runtime")
OTHERS = (
    *(ROOT / "consumer_agent").rglob("*.py"),
    *(ROOT / "zkrebalancer/localcluster").glob("mirror*.py"),
    *(path for name in SHELLS for path in (ROOT / "zkrebalancer" / name).rglob("*.py")),
)
LEVELS = {"warning", "error", "exception", "critical"}
SECTIONS = [text for text in (ROOT / "docs/runbook.md").read_text().split("\n## ") if text.startswith("Lines of ")]
TABLES = "\n".join(SECTIONS)
MIN_PIECE = 6  # shorter constants are punctuation between values


def pieces(call: ast.Call) -> list[str]:
    """Return the constant texts of a line, without what its values replace."""
    constants = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
    texts = [text for text in constants if isinstance(text, str)]
    return [piece.strip(" ;:,()") for text in texts for piece in re.split(r"%[-.\d]*[a-z]", text)]


def is_line(node: ast.AST) -> bool:
    """Whether a call logs a line, or has one logged."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "Warn"
    if not isinstance(node.func, ast.Attribute):
        return False
    by = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
    return node.func.attr in LEVELS if by == "_log" else node.func.attr == "warn" and by != "warnings"


def lines(paths: Iterator[Path] | tuple[Path, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield file and constant texts of each line; a call that passes on the text of another one has none."""
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text())):
            if is_line(node):
                assert isinstance(node, ast.Call)
                found = [piece for piece in pieces(node) if len(piece) > MIN_PIECE]
                if found:
                    yield path.name, found


@pytest.mark.parametrize("paths", [tuple(CORE.glob("*.py")), OTHERS], ids=["core", "others"])
def test_every_line_has_a_row(paths: tuple[Path, ...]) -> None:
    """Remove a row of the runbook: its line is missing."""
    found = list(lines(paths))
    assert len(found) > 15
    assert [(name, texts) for name, texts in found if not any(text[:25] in TABLES for text in texts)] == []


def test_every_row_is_a_line_of_the_code() -> None:
    sources = [path for top in ("zkrebalancer", "consumer_agent") for path in sorted((ROOT / top).rglob("*.py"))]
    code = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in sources))
    rows = [line.split(" | ")[0] for line in TABLES.splitlines() if line.startswith("| `")]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 60
    unknown = [
        (text, piece)
        for text in quoted
        for piece in re.split(r"…|\b[A-Z]+\b|/consumers/coordinator|/consumers/security|60|[/:;(), ]+$", text)
        if len(piece.strip(" ;:,()/")) > 3 and piece.strip(" ;:,()/") not in code
    ]
    assert unknown == []
