"""What a server refuses for a while."""

from __future__ import annotations

from dataclasses import dataclass

from zkrebalancer.protocol.calls import Call, Get, ListChildren, Multi, Operation, Refusal, Refused, Sync, WatchBelow


@dataclass(frozen=True, slots=True)
class Refusing:
    """Temporary refusals by a server, of some kinds of operations or reads below `path`.

    `is_whole`: a transaction is refused as a whole, without naming an operation.
    """

    kinds: tuple[type[Operation | Get | ListChildren | WatchBelow | Sync], ...]
    path: str
    refusal: Refusal
    until_us: int
    is_whole: bool = False

    def reply(self, call: Call) -> Refused | None:
        """Return the refusal of a call, None if it is let through."""
        if isinstance(call, Multi):
            for index, operation in enumerate(call.operations):
                if self._concerns(operation):
                    return Refused(self.refusal, None if self.is_whole else index)
        elif isinstance(call, Get | ListChildren | WatchBelow | Sync) and self._concerns(call):
            return Refused(self.refusal)
        return None

    def _concerns(self, asked: Operation | Get | ListChildren | WatchBelow | Sync) -> bool:
        return isinstance(asked, self.kinds) and asked.path.startswith(self.path)
