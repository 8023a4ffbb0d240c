"""Puts a bug into the code: replaces a few words in a function's source while a `with` block runs.

Functions are compared and edited as `ast.unparse` prints them, so comments, docstrings, line breaks, quotes and
superfluous brackets are ignored. A renamed or moved function is found by the words. In them, `___` matches any
expression: `partitions=___`.
"""

from __future__ import annotations
import __future__

import ast
import difflib
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
PACKAGES = (
    "zkrebalancer/rebalance",
    "zkrebalancer/region",
    "zkrebalancer/protocol",
    "zkrebalancer/operations",
    "consumer_agent",
)
ANY_EXPRESSION = "___"
ALIKE = 0.4  # similarity from which an error names a line

Words = list[tuple[str, int, int]]  # text, begin and end


class StaleEditError(Exception):
    """The words to replace are in no function, or in several: the list of bugs does not match the code."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the project; `owner`: its class or None; `source` is without the docstring."""

    module: str
    owner: str | None
    name: str
    source: str

    @property
    def path(self) -> str:
        return ".".join(filter(None, (self.module, self.owner, self.name)))


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces every `old` by `new` in the function whose dotted path ends in `place`.

    If `old` is empty, `new` is inserted before the first statement.
    """

    place: str
    old: str
    new: str

    def function(self) -> Function:
        """Return the function with this path, if it contains the words; else the only one that contains them.

        Raises:
            StaleEditError: there is none, or there are several.

        """
        named = [function for function in functions() if f".{function.path}".endswith(f".{self.place}")]
        fitting = [function for function in named if not self.old or _found(function.source, self.old)]
        if not fitting and self.old:
            fitting = [function for function in functions() if _found(function.source, self.old)]
        if len(fitting) != 1:
            found = ", ".join(function.path for function in fitting) or "no function"
            raise StaleEditError(f"{self.place}: {self.old!r} is in the source of {found}{self._most_alike(named)}")
        return fitting[0]

    def _most_alike(self, named: list[Function]) -> str:
        """Return the line of the function that is most similar to the words."""
        lines = [line.strip() for function in named for line in function.source.splitlines()]
        alike = difflib.get_close_matches(self.old, lines, n=1, cutoff=ALIKE)
        return f"; most alike: {alike[0]!r}" if alike else ""

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
    except tokenize.TokenError:  # a fragment may leave brackets open
        pass
    return words


def _found(source: str, fragment: str) -> list[tuple[int, int]]:
    """Return the positions of the fragment in the source: begins and ends, in order."""
    words, wanted = _words(source), [text for text, _begin, _end in _words(fragment)]
    texts = [text for text, _begin, _end in words]
    begins_line = [not at or "\n" in source[words[at - 1][2] : words[at][1]] for at in range(len(words))]
    found = []
    for at in range(len(words)):
        end = _end_of_match(texts, begins_line, at, wanted)
        if end is not None:
            found.append((words[at][1], words[end - 1][2]))
    return found


def _end_of_match(texts: list[str], begins_line: list[bool], at: int, wanted: list[str]) -> int | None:
    """Return the end of the wanted words if they begin at `at`, else None."""
    for word, following in zip(wanted, [*wanted[1:], None], strict=True):
        begin = at
        if word == ANY_EXPRESSION:
            at = _end_of_expression(texts, begins_line, at, following)
        elif at < len(texts) and texts[at] == word:
            at += 1
        if at == begin:
            return None
    return at


def _end_of_expression(texts: list[str], begins_line: list[bool], at: int, following: str | None) -> int:
    """Return the end of an expression: a comma, a colon, a closing bracket, the following word or the line's end."""
    begin, depth = at, 0
    while at < len(texts):
        if depth == 0 and (texts[at] in {*",:)]}", following} or (at > begin and begins_line[at])):
            break
        depth += (texts[at] in {*"([{"}) - (texts[at] in {*")]}"})
        at += 1
    return at


def _replaced(source: str, old: str, new: str) -> str:
    for begin, end in reversed(_found(source, old)):
        source = source[:begin] + new + source[end:]
    return source


@contextmanager
def edited(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Run with the edited functions in place of the real ones; each edit must be of a different function."""
    with ExitStack() as stack:
        for edit in edits:
            function = edit.function()
            module = importlib.import_module(function.module)
            owner = getattr(module, function.owner) if function.owner else module
            stack.enter_context(mock.patch.object(owner, function.name, edit.apply()))
        yield
