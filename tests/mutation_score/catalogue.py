"""Every mutant of a package: mutmut's operators applied to each node of each function."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import libcst as cst
from libcst import matchers
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "protocol": "zkrebalancer/protocol",
    "rebalance": "zkrebalancer/rebalance",
    "membership": "consumer_agent/membership",
    "assignment": "zkrebalancer/assignment",
    "observe": "zkrebalancer/observe",
    "operations": "zkrebalancer/operations",
}


def _is_log(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value.strip("_") in {"log", "logger"}


# Omitted: types (mypy checks them), decorators (they run at import), `len` and `isinstance` (changes only cause a
# TypeError), logging (its wording is no promise), and `strict` of `zip` (an assertion that always holds: nothing can
# notice its absence).
_LEFT_OUT = (
    matchers.Annotation()
    | matchers.Decorator()
    | matchers.FormattedString()  # a text for people
    | matchers.Call(func=matchers.Name("len") | matchers.Name("isinstance") | matchers.Name("cast"))
    | matchers.Call(func=matchers.Attribute(value=matchers.MatchIfTrue(_is_log)))
    | matchers.Arg(keyword=matchers.Name("strict"))
)


@dataclass(frozen=True)
class Mutant:
    """One change of one function; the tests that run its lines should notice it."""

    package: str
    path: str  # below the root, with slashes
    function: str  # Class.method or function
    number: int  # among the mutants of its function
    lines: range  # of the changed node
    function_lines: range
    function_source: str
    module: cst.Module
    original: cst.CSTNode
    mutated: cst.CSTNode

    @cached_property
    def source(self) -> str:
        """The whole module with the change."""
        code: str = self.module.deep_replace(self.original, self.mutated).code
        return code

    @cached_property
    def key(self) -> str:
        """A name that changes only with the function; a seed draws from the sorted keys."""
        named = "\0".join((self.path, self.function, self.function_source, str(self.number)))
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    @cached_property
    def diff(self) -> list[str]:
        """The lines that change, `-` before and `+` after."""
        before, after = (text.splitlines() for text in (self.module.code, self.source))
        changed = difflib.unified_diff(before, after, n=0, lineterm="")
        return [line[0] + line[1:].strip() for line in list(changed)[2:] if line[0] in "-+"]

    @property
    def place(self) -> str:
        """Its place as compilers print it, and its function."""
        return f"{self.path}:{self.lines.start} {self.function}"


def mutants(package: str) -> Iterator[Mutant]:
    """Yield every mutant of a package of `PACKAGES`, file by file."""
    for file in sorted((ROOT / PACKAGES[package]).rglob("*.py")):
        yield from mutants_of(package, file.relative_to(ROOT).as_posix(), file.read_text())


def mutants_of(package: str, path: str, text: str) -> Iterator[Mutant]:
    """Yield every mutant of one module."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    positions = wrapper.resolve(PositionProvider)
    for function, definition in _functions(wrapper.module.body, ""):
        source = wrapper.module.code_for_node(definition).strip()
        function_lines = _lines(positions[definition])
        changes = ((node, mutated) for node in _nodes(definition) for mutated in _changes(node))
        for number, (node, mutated) in enumerate(changes):
            lines = _lines(positions[node])
            yield Mutant(package, path, function, number, lines, function_lines, source, wrapper.module, node, mutated)


def _lines(position: CodeRange) -> range:
    return range(position.start.line, position.end.line + 1)


def _functions(body: object, owner: str) -> Iterator[tuple[str, cst.FunctionDef]]:
    for statement in body if isinstance(body, list | tuple) else ():
        if isinstance(statement, cst.FunctionDef):
            yield f"{owner}{statement.name.value}", statement
        elif isinstance(statement, cst.ClassDef):
            yield from _functions(statement.body.body, f"{owner}{statement.name.value}.")


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and its descendants that may be changed."""
    if matchers.matches(node, _LEFT_OUT):
        return
    yield node
    for child in node.children:
        yield from _nodes(child)


def _changes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.SimpleString) and " " in node.value:
        return  # a text for people
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            yield from (mutated for mutated in operator(node) if _strict_arguments(mutated) == _strict_arguments(node))


def _strict_arguments(node: cst.CSTNode) -> list[str | None]:
    """Return the value of `strict` in a call of `zip`, a list of at most one."""
    if not matchers.matches(node, matchers.Call(func=matchers.Name("zip"))):
        return []
    arguments = (argument for argument in cst.ensure_type(node, cst.Call).args if argument.keyword is not None)
    return [getattr(argument.value, "value", None) for argument in arguments]
