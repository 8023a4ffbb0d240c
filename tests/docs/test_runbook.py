"""The runbook has a row for every metric, and every line that a process logs at `warning` or above; none for others."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CORE = ROOT / "zkrebalancer" / "rebalance"
SHELLS = ("cli", "coordinator", "gateway", "observe", "pipeline", "runtime", "topic_mirror")
OTHERS = (
    *(ROOT / "consumer_agent").rglob("*.py"),
    *(path for name in SHELLS for path in (ROOT / "zkrebalancer" / name).rglob("*.py")),
)
ALERTS = ROOT / "deploy/monitoring/alerts.yaml"
LEVELS = {"warning", "error", "exception", "critical"}
SECTIONS = [text for text in (ROOT / "docs/runbook.md").read_text().split("\n## ") if text.startswith("Lines of ")]
TABLES = "\n".join(SECTIONS)
ROWS = "\n".join(line.split(" | ")[0] for line in TABLES.splitlines() if line.startswith("| `"))  # without what to do
MIN_PIECE = 6  # shorter constants are punctuation between values
MAX_DEPTH = 3  # of variables that stand for others
SOURCES = [path for top in ("zkrebalancer", "consumer_agent") for path in sorted((ROOT / top).rglob("*.py"))]
ENDS = {"ChildError", "ConsumerError", "DeadLetterError", "FrameError"}  # that end the sidecar, with exit code 1


@pytest.fixture(autouse=True, scope="module")
def no_collection() -> Iterator[None]:
    """Pause the collector, which would look through all syntax trees again and again, and leave them out later."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def pieces(line: ast.AST) -> list[str]:
    """Return the constant texts of a line, without what its values replace."""
    constants = [part.value for part in ast.walk(line) if isinstance(part, ast.Constant)]
    texts = [text for text in constants if isinstance(text, str)]
    found = [piece.strip(" ;:,()") for text in texts for piece in re.split(r"%[-.\d]*[a-z]", text)]
    return [piece for piece in found if len(piece) > MIN_PIECE]


def is_line(node: ast.AST) -> bool:
    """Whether a call logs a line, or has one logged."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "Warn"
    if not isinstance(node.func, ast.Attribute):
        return False
    by = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
    if node.func.attr == "add":
        return ast.unparse(node.func) == "self.problems.add"  # they are logged when a group has been read
    return node.func.attr in LEVELS if by == "_log" else node.func.attr in {"warn", "complain"} and by != "warnings"


def last_name(node: ast.AST) -> str:
    """Return the name of a function or a method."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@cache
def defined() -> dict[str, list[Path]]:
    """Return name -> the files with a function outside of classes, or a class, of that name: few have to be parsed."""
    found: dict[str, list[Path]] = {}
    for path in SOURCES:
        for name in re.findall(r"^(?:def|class) (\w+)", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(path)
    return found


@cache
def made(name: str) -> list[ast.AST]:
    """Return the texts that a function outside of classes returns, or that an error has."""
    found: list[ast.AST] = []
    for node in (node for path in dict.fromkeys(defined().get(name, ())) for node in tree_of(path).body):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            returns = (part for part in ast.walk(node) if isinstance(part, ast.Return))
            found += [part.value for part in returns if part.value is not None]
        elif isinstance(node, ast.ClassDef) and node.name == name:
            calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
            found += [part for part in calls if last_name(part.func) == "__init__"]
    return found


@cache
def values(tree: ast.AST) -> dict[str, list[ast.AST]]:
    """Return name -> what is assigned to it anywhere below, in the order of `ast.walk`."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in {ast.unparse(one) for target in targets for one in getattr(target, "elts", [target])}:
                found.setdefault(name, []).append(node.value)
    return found


def origins(part: ast.AST, function: ast.AST, tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the values of a part of a line: those set to its variable, or returned by its function."""
    if isinstance(part, ast.Call) and not ast.unparse(part.func).startswith("self."):
        yield from made(last_name(part.func))
    elif isinstance(part, ast.Name | ast.Attribute):
        name = ast.unparse(part)
        yield from values(tree if name.startswith("self.") or name.isupper() else function).get(name, ())


def reached(line: ast.AST, function: ast.AST, tree: ast.Module, depth: int = MAX_DEPTH) -> Iterator[ast.AST]:
    """Yield a line, and if it has no text of its own, the values that it passes on."""
    yield line
    if depth and not pieces(line):
        for origin in (origin for part in ast.walk(line) for origin in origins(part, function, tree)):
            yield from reached(origin, function, tree, depth - 1)


def lines(paths: Iterator[Path] | tuple[Path, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield file and constant texts of each line, also of those whose text comes from a variable or from a caller."""
    for path in sorted(paths):
        tree = tree_of(path)
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        found = dict[ast.Call, list[str]]()
        loggers = set[str]()  # functions that log a text of their callers, known after the first round
        for function in functions * 2:
            given = {argument.arg for argument in function.args.args} - {"self"}
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if not is_line(call) and last_name(call.func) not in loggers:
                    continue
                parts = list(reached(call, function, tree))
                own = pieces(call) if is_line(call) else []
                if texts := own or [text for part in parts for text in pieces(part) if " " in text]:
                    found[call] = texts
                elif given & {part.id for one in parts for part in ast.walk(one) if isinstance(part, ast.Name)}:
                    loggers.add(function.name)
        yield from ((path.name, texts) for texts in found.values())


@pytest.mark.parametrize("paths", [tuple(CORE.glob("*.py")), OTHERS], ids=["core", "others"])
def test_every_line_has_a_row(paths: tuple[Path, ...]) -> None:
    """Remove a row of the runbook: its line is missing."""
    found = list(lines(paths))
    assert len(found) > 20
    assert [(name, texts) for name, texts in found if not any(text[:25] in ROWS for text in texts)] == []


def test_every_row_is_a_line_of_the_code() -> None:
    code = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in SOURCES))
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


def test_every_end_of_the_sidecar_has_a_row() -> None:
    rows = "\n".join(row[0] for row in cells_of("runbook.md", "Ends of an agent"))
    nodes = [node for path in (ROOT / "consumer_agent/sidecar").glob("*.py") for node in ast.walk(tree_of(path))]
    found = [pieces(node) for node in nodes if isinstance(node, ast.Call) and last_name(node.func) in ENDS]
    assert len(found) >= 8
    assert [texts for texts in found if not any(text[:25] in rows for text in texts)] == []


PROGRAMS = ("coordinator", "agent", "gateway", "mirror")


def cells_of(page: str, title: str) -> list[list[str]]:
    """Return the rows of the tables in a section, of those that begin with a name in code."""
    section = re.split(rf"\n##+ {title}\n", (ROOT / "docs" / page).read_text())[1]
    section = re.split(r"\n##+ ", section)[0]
    return [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]


def metrics_of(cells: list[list[str]]) -> dict[str, list[str]]:
    return {name: row for row in cells for name in re.findall(r"`(\w+)", row[0])}


def runbook_of(program: str) -> dict[str, list[str]]:
    by = {"coordinator": "the coordinator", "agent": "an agent", "gateway": "a gateway", "mirror": "the topic mirror"}
    return metrics_of(cells_of("runbook.md", f"Metrics of {by[program]}"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_metric_has_a_row_with_what_to_do(program: str) -> None:
    """`reference/metrics.md` names every metric of the programs: other tests compare it with them."""
    title = {"mirror": "Topic mirror"}.get(program, program.capitalize())
    known = set(metrics_of(cells_of("reference/metrics.md", title)))
    if program == "agent":
        text = (ROOT / "docs/reference/metrics.md").read_text()
        known |= set(re.findall(r"`(\w+)`", text.partition("(`--exec`), also:")[2].partition("\n")[0]))
    rows = runbook_of(program)
    assert len(known) >= 5
    assert known == set(rows)
    assert [name for name, row in rows.items() if len(row) != 4 or not all(cell.strip() for cell in row)] == []


def test_every_alert_is_beside_its_metrics() -> None:
    """Remove an alert from the table of metrics, or its link."""
    prefixes = {"consumer_agent": "agent", **{f"zkrebalancer_{name}": name for name in PROGRAMS if name != "agent"}}
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    wanted = set()
    for rule in rules:
        for prefix, name in re.findall(r"(consumer_agent|zkrebalancer_[a-z]+)_(\w+)", rule["expr"]):
            row = runbook_of(prefixes[prefix])
            known = next(
                known for known in (name, name.removesuffix("_bucket"), name.replace("_seconds", "_ms")) if known in row
            )
            wanted.add((rule["alert"], prefixes[prefix], known))
    shown = {
        (alert, program, name)
        for program in PROGRAMS
        for name, row in runbook_of(program).items()
        for alert in re.findall(r"\[(\w+)\]\(#", row[2])
    }
    assert len(rules) > 15
    assert wanted - shown == set()
    beside = {(alert, program) for alert, program, _name in wanted}
    assert [one for one in shown if one[:2] not in beside] == []
