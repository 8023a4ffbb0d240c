"""Rules that the project's code keeps. Each rule takes one file and returns its violations, line by line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.style.sources import Source

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "uuid1", "uuid4"})
WALL_CLOCKS = frozenset(
    {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.today"}
    | {"clock.epoch_ms", "clock.boot_ms", "time.CLOCK_REALTIME"}
)
BROAD = frozenset({"Exception", "BaseException"})
# These patterns are written so that they do not match themselves.
_UNFINISHED = re.compile(r"\b([T]ODO|[F]IXME|[X]XX|[N]otImplementedError)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.$}~*-])/(?:farm|home|mnt|root|tmp|Users|work)/\w")
_REGISTRY = re.compile(r"https?://[\w.-]*(?:pypi[.]org|pythonhosted[.]org|repo1?[.]maven[.](?:org|apache[.]org))")


def size_breaches(source: Source) -> list[str]:
    """Return files and functions that are too long."""
    length = len(source.text.splitlines())
    found = [f"{source.path}: {length} lines, at most {MAX_FILE_LINES}"] if length > MAX_FILE_LINES else []
    for node in _statements(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                found.append(source.at(node, f"{node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"))
    return found


def impure_calls(source: Source) -> list[str]:
    """Return calls that do I/O or are random, in a pure module."""
    return [source.at(node, f"a pure module calls {name}") for node, name in _calls(source) if name in IMPURE_CALLS]


def prints(source: Source) -> list[str]:
    """Return calls of print, which only the command line may make."""
    return [
        source.at(node, "print outside the command line")
        for node, _name in _calls(source)
        if ast.unparse(node.func) == "print"
    ]


def blind_sleeps(source: Source) -> list[str]:
    """Return sleeps outside a `while` that polls: they hide a race or wait longer than needed."""
    if "sleep" not in source.text:
        return []
    polling = {id(node) for loop in ast.walk(source.tree) if isinstance(loop, ast.While) for node in ast.walk(loop)}
    return [
        source.at(node, "time.sleep without a polling loop")
        for node, name in _calls(source)
        if name == "sleep" and ast.unparse(node.func) in {"sleep", "time.sleep"} and id(node) not in polling
    ]


def wall_clocks(source: Source) -> list[str]:
    """Return each use of the wall clock, which may jump: what waits or expires by it may do so at once, or never."""
    return [
        source.at(node, f"{ast.unparse(node)} may jump")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCKS
    ]


def raw_loggers(source: Source) -> list[str]:
    """Return loggers whose handlers' errors would reach those who log."""
    return [
        source.at(node, "a logger that is not of zkrebalancer.runtime.logs")
        for node, name in _calls(source)
        if name == "getLogger" and node.args
    ]


MAY_CATCH_ALL = {  # how often a file may: where a bug in one group must not disturb the others
    "zkrebalancer/rebalance/scheduler.py": 1,
    "zkrebalancer/group_protocol/machine.py": 2,
    "zkrebalancer/gateway/offsets.py": 1,
    "zkrebalancer/runtime/logs.py": 1,  # whatever an application's log handler raises
    "consumer_agent/runtime/decoding.py": 1,  # whatever an application's deserializer raises, with the record
    "consumer_agent/aio.py": 1,  # raised again in the task that waits
    "consumer_agent/region/at_once.py": 1,  # raised again in the thread that waits
    "consumer_agent/runtime/workers.py": 1,  # the same
}


def broad_excepts(source: Source) -> list[str]:
    """Return handlers that catch everything, unless they clean up and re-raise it, or throw it into a generator."""
    found = [
        source.at(node, "catches everything")
        for node in _statements(source.tree)
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _raises_again(node)
    ]
    return found[MAY_CATCH_ALL.get(source.path, 0) :]


def unfinished(path: str, text: str) -> list[str]:
    """Return marks of unfinished work."""
    return _matches(_UNFINISHED, path, text, "unfinished")


def machine_paths(path: str, text: str) -> list[str]:
    """Return paths and addresses that are valid on one machine or network only."""
    found = _matches(_MACHINE_PATH, path, text, "absolute path of one machine")
    return found + _matches(_REGISTRY, path, text, "address of a package registry")


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module with its statements and handlers, also those inside others."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


def _calls(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call with the last part of the called name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node, node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.attr


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(kind, ast.Name) and kind.id in BROAD for kind in kinds)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    if isinstance(last, ast.Assign | ast.Expr):  # a generator gets the exception, which raises it again or handles it
        return isinstance(last.value, ast.Call) and ast.unparse(last.value).endswith(f".throw({handler.name})")
    return isinstance(last, ast.Raise) and last.exc is None


def _matches(pattern: re.Pattern[str], path: str, text: str, what: str) -> list[str]:
    return [
        f"{path}:{number}: {what}: {found[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        if (found := pattern.search(line))
    ]
