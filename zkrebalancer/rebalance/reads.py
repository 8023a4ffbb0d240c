"""Reads of one kind, which become calls some at a time: a large group has thousands of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from zkrebalancer.protocol.calls import Get, ListChildren, Reply


class Reads(NamedTuple):
    """Reads of one node (`names` is None), or of nodes below it.

    `handle` gets the name, if there are names, and the reply.
    """

    kind: type[Get | ListChildren]
    path: str
    handle: Callable[..., None]
    names: Sequence[str] | None = None
    watch: bool = False

    @property
    def size(self) -> int:
        """How many reads there are."""
        return 1 if self.names is None else len(self.names)

    @property
    def first_path(self) -> str:
        """The path of the first node; there has to be one."""
        return self.path if self.names is None else f"{self.path}/{self.names[0]}"

    def calls(self) -> list[Get | ListChildren]:
        """Return the calls, in order."""
        kind, watch = self.kind, self.watch
        if self.names is None:
            return [kind(self.path, watch)]
        above = self.path + "/"
        return [kind(above + name, watch) for name in self.names]

    def arguments(self) -> list[tuple[Any, ...]]:
        """Return what a handler of all replies needs: for each call, `handle` and the name."""
        handle = self.handle
        return [(handle,)] if self.names is None else [(handle, name) for name in self.names]

    def split(self, count: int) -> tuple[Reads, Reads]:
        """Return the first reads, and the others."""
        names = self.names or ()
        return self._replace(names=names[:count]), self._replace(names=names[count:])

    def each(self) -> Iterator[tuple[Get | ListChildren, Callable[[Reply], None]]]:
        """Yield each call, and the handler of its reply."""
        for call, (handle, *name) in zip(self.calls(), self.arguments(), strict=True):
            yield call, partial(handle, *name)
