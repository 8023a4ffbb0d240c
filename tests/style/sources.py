"""The project's own files, parsed once for the rules of this folder."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("zkrebalancer", "consumer_agent")
TEXT_SUFFIXES = frozenset(
    {".cfg", ".json", ".md", ".properties", ".py", ".pyi", ".sh", ".toml", ".txt", ".yaml", ".yml"}
)
TOP_LEVEL_FILES = (
    *("Makefile", ".ci/run", "setup.py", "pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md"),
    "pyspark_consumer_group.py",
)


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file; `path` is relative to the root, with slashes."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        """The file's syntax tree."""
        return _parse(self.text)

    @property
    def module(self) -> str:
        """The file's dotted name; that of a package is without `__init__`."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def at(self, node: ast.stmt | ast.expr | ast.excepthandler, text: str) -> str:
        """Return `text` with its place in the file."""
        return f"{self.path}:{node.lineno}: {text}"


@cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def python_sources(*folders: str) -> list[Source]:
    """Return every Python file below these folders, sorted and parsed."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    sources = [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]
    _parse_once(tuple(source.text for source in sources))
    return sources


@cache
def _parse_once(texts: tuple[str, ...]) -> None:
    """Parse without the collector, which would look through all trees again and again: they stay."""
    known, was_enabled = _parse.cache_info().misses, gc.isenabled()
    gc.disable()
    try:
        for text in texts:
            _parse(text)
        if _parse.cache_info().misses > known:
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def text_files() -> Iterator[tuple[str, str]]:
    """Yield path and content of every hand-written text file."""
    folders = [*PRODUCT, "tests", "typings", "docs", "deploy"]
    below = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    for path in sorted({*below, *(ROOT / name for name in TOP_LEVEL_FILES)}):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


def imported_names(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Yield every import as (statement, dotted name): `from a import b` is `a.b`; relative ones begin with a dot."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node, "." * node.level + ".".join(filter(None, (node.module, alias.name)))


def is_below(name: str, package: str) -> bool:
    """Whether a dotted name is this package or inside it."""
    return name == package or name.startswith(f"{package}.")


def imported_modules(source: Source, modules: set[str]) -> set[str]:
    """Return those of `modules` that a file imports; importing a module also imports its packages."""
    found = set()
    for _node, name in imported_names(source):
        parts = name.split(".")
        found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)} & modules
    return found
