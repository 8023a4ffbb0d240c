"""Puts a bug into the code: replaces a few words in a function's source, for as long as a `with` lasts.

Comments, docstrings, line breaks, quotes and superfluous brackets do not count: a function is compared and edited in
the form that `ast.unparse` gives it. A function that was renamed or moved is found by the words themselves.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import io
import tokenize
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
PACKAGES = ("zkrebalancer/rebalance", "zkrebalancer/protocol", "consumer_agent")

Words = list[tuple[str, int, int]]  # text, and where it begins and ends


class StaleEditError(Exception):
    """The words that are to be replaced stand in no function, or in several: the code has changed, the list has not."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the project; `owner` is the class it belongs to, or None; `source` is without its docstring."""

    module: str
    owner: str | None
    name: str
    source: str

    @property
    def path(self) -> str:
        return ".".join(filter(None, (self.module, self.owner, self.name)))


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function whose dotted path ends in `place`, every `old` becomes `new`.

    `old` empty: `new` is put before the first statement.
    """

    place: str
    old: str
    new: str

    def function(self) -> Function:
        """Return the function that is meant: that of the name, else the only one that has the words.

        Raises:
            StaleEditError: there is none, or there are several.

        """
        named = [function for function in functions() if f".{function.path}".endswith(f".{self.place}")]
        fitting = [function for function in named if not self.old or _found(function.source, self.old)]
        if not fitting and self.old:
            fitting = [function for function in functions() if _found(function.source, self.old)]
        if len(fitting) != 1:
            found = ", ".join(function.path for function in fitting) or "no function"
            raise StaleEditError(f"{self.place}: {self.old!r} is in the source of {found}")
        return fitting[0]

    def apply(self) -> Any:
        """Return the edited function; raises StaleEditError."""
        function = self.function()
        if self.old:
            edited = _replaced(function.source, self.old, self.new)
        else:
            definition = ast.parse(function.source).body[0]
            assert isinstance(definition, ast.FunctionDef)
            definition.body[:0] = ast.parse(f"def f():\n {self.new}").body[0].body  # type: ignore[attr-defined]
            edited = ast.unparse(definition)
        module = importlib.import_module(function.module)
        code = compile(edited, f"<{function.name}, edited>", "exec", __future__.annotations.compiler_flag)
        names: dict[str, Any] = {}
        exec(code, module.__dict__, names)  # noqa: S102  # the project's own source
        return names[function.name]


@cache
def functions() -> tuple[Function, ...]:
    """Return every function and method of the code under test."""
    found = []
    for file in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for statement in ast.parse(file.read_text()).body:
            owner = statement.name if isinstance(statement, ast.ClassDef) else None
            for definition in statement.body if isinstance(statement, ast.ClassDef) else [statement]:
                if isinstance(definition, ast.FunctionDef):
                    source = ast.unparse(_without_docstring(definition))
                    found.append(Function(module, owner, definition.name, source))
    return tuple(found)


def _without_docstring(definition: ast.FunctionDef) -> ast.FunctionDef:
    if ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:] or [ast.Pass()]
    return definition


@cache
def _words(source: str) -> Words:
    """Return the tokens of a piece of code, all quotes alike."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    words: Words = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.string.strip() and token.type != tokenize.COMMENT:
                begin, end = lines[token.start[0] - 1] + token.start[1], lines[token.end[0] - 1] + token.end[1]
                words.append((token.string.replace('"', "'"), begin, end))
    except tokenize.TokenError:  # a fragment need not close its brackets
        pass
    return words


def _found(source: str, fragment: str) -> list[tuple[int, int]]:
    """Return where the fragment stands in the source: begins and ends, in order."""
    words, wanted = _words(source), [text for text, _begin, _end in _words(fragment)]
    texts = [text for text, _begin, _end in words]
    starts = [at for at in range(len(words) - len(wanted) + 1) if texts[at : at + len(wanted)] == wanted]
    return [(words[at][1], words[at + len(wanted) - 1][2]) for at in starts]


def _replaced(source: str, old: str, new: str) -> str:
    for begin, end in reversed(_found(source, old)):
        source = source[:begin] + new + source[end:]
    return source


@contextmanager
def edited(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Run with the edited functions in place of the real ones; each edit is of another function."""
    with ExitStack() as stack:
        for edit in edits:
            function = edit.function()
            module = importlib.import_module(function.module)
            owner = getattr(module, function.owner) if function.owner else module
            stack.enter_context(mock.patch.object(owner, function.name, edit.apply()))
        yield
