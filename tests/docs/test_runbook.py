"""The runbook has a row for every line that the coordinator logs at `warning`, and no row for others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "zkrebalancer" / "rebalance"
TABLE = (ROOT / "docs/runbook.md").read_text().split("## Lines of the coordinator's log\n")[1].split("\n## ")[0]


def texts() -> Iterator[tuple[str, list[str]]]:
    """Yield file and constant texts of each line that the core logs itself."""
    for path in sorted(CORE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "warn":
                parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                constants = [part for part in parts if isinstance(part, str) and len(part) > 8]
                if constants:  # otherwise it passes on the text of another line
                    yield path.name, constants


def test_every_line_of_the_core_has_a_row() -> None:
    missing = [
        (name, parts) for name, parts in texts() if not any(part.strip(" ;:,()")[:25] in TABLE for part in parts)
    ]
    assert missing == []


def test_every_row_is_a_line_of_the_code() -> None:
    code = "".join(path.read_text() for path in sorted((ROOT / "zkrebalancer").rglob("*.py")))
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    rows = [line.split(" | ")[0] for line in TABLE.splitlines() if line.startswith("| `")]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row)]
    assert len(quoted) > 15
    for text in quoted:
        pieces = [piece.strip() for piece in re.split(r"…|\b[A-Z]+\b|/consumers/coordinator|60", text)]
        assert all(piece in code for piece in pieces if len(piece) > 3), text
