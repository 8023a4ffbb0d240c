"""Puts a bug into the code: replaces a few words in a function's source, for as long as a `with` lasts."""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock


class StaleEditError(Exception):
    """The words that are to be replaced do not stand in the function: the code has changed, the list has not."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In `owner.name`, every `old` becomes `new`; `old` empty: `new` is put before the first statement."""

    owner: Any
    name: str
    old: str
    new: str

    def apply(self) -> Any:
        """Return the edited function.

        Raises:
            StaleEditError: `old` does not stand in its source.

        """
        function = inspect.unwrap(inspect.getattr_static(self.owner, self.name))
        source = textwrap.dedent(inspect.getsource(function))
        if self.old not in source:
            raise StaleEditError(f"{self.name}: {self.old!r} is not in its source")
        edited = source.replace(self.old, self.new) if self.old else _prepended(source, self.new)
        module = sys.modules[function.__module__]
        code = compile(edited, f"<{self.name}, edited>", "exec", __future__.annotations.compiler_flag)
        names: dict[str, Any] = {}
        exec(code, module.__dict__, names)  # noqa: S102  # the project's own source
        return names[self.name]


def _prepended(source: str, statement: str) -> str:
    """Put a statement before the body, after the docstring if there is one."""
    lines = source.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.rstrip().endswith(":"))
    if lines[begin + 1].lstrip().startswith('"""'):
        begin = next(n for n in range(begin + 1, len(lines)) if lines[n].rstrip().endswith('"""'))
    return "\n".join([*lines[: begin + 1], f"    {statement}", *lines[begin + 1 :]]) + "\n"


@contextmanager
def edited(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Run with the edited functions in place of the real ones; several edits of one function follow one another."""
    with ExitStack() as stack:
        for edit in edits:
            stack.enter_context(mock.patch.object(edit.owner, edit.name, edit.apply()))
        yield
