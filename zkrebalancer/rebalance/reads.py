"""Reads of one kind, which become calls some at a time: a large group has thousands of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

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

    def split(self, count: int) -> tuple[Reads, Reads]:
        """Return the first reads, and the others."""
        names = self.names or ()
        return self._replace(names=names[:count]), self._replace(names=names[count:])

    def each(self) -> Iterator[tuple[Get | ListChildren, Callable[[Reply], None]]]:
        """Yield each call, and the handler of its reply."""
        if self.names is None:
            yield self.kind(self.path, self.watch), self.handle
            return
        for name in self.names:
            yield self.kind(f"{self.path}/{name}", self.watch), partial(self.handle, name)
