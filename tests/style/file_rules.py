"""Rules for files: modules are imported or started by name, documents are linked, links lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from tests.style.sources import Source, imported_modules

_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_COLLECTED = re.compile(r"(^|/)(test_[^/]*|conftest|__init__)\.py$")  # pytest or Python finds these


def unused_modules(sources: Iterable[Source], started: Iterable[str]) -> list[str]:
    """Return modules that no other module imports and no string in `sources` or `started` names.

    Such a string is the module's name, or the name and a colon (an entry point). For `python -m PACKAGE`, the package's
    name stands for its `__main__`.
    """
    sources = list(sources)
    modules = {source.module for source in sources}
    used = {text.partition(":")[0] for text in started}
    used |= {f"{name}.__main__" for name in used}
    for source in sources:
        others = modules - {source.module}
        used |= imported_modules(source, others)
        used |= {text for text in _strings(source) if text in others}
    return sorted(s.path for s in sources if s.module not in used and not _COLLECTED.search(s.path))


def _strings(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def broken_links(documents: Mapping[str, str], exists: Callable[[str], bool]) -> list[str]:
    """Return relative links without a target; `documents` is path -> text."""
    return [f"{path}: links to {link}" for path in documents for link in _links(path, documents) if not exists(link)]


def unlinked_documents(documents: Mapping[str, str], first: str) -> list[str]:
    """Return the documents that links from the document `first` do not reach."""
    reached, waiting = {first}, [first]
    while waiting:
        path = waiting.pop()
        new = {link for link in _links(path, documents) if link in documents} - reached
        reached |= new
        waiting += new
    return sorted(set(documents) - reached)


def _links(path: str, documents: Mapping[str, str]) -> list[str]:
    targets = [target for target in _LINK.findall(documents[path]) if "://" not in target]
    return [_joined(PurePosixPath(path).parent, target) for target in targets]


def _joined(folder: PurePosixPath, target: str) -> str:
    parts: list[str] = []
    for part in (folder / target).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
