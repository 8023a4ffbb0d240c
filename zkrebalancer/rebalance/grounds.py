"""What a tool judges the claims of members by, while a leader may write: whether it changed during the reading."""

from __future__ import annotations

from zkrebalancer.protocol.calls import Content, Reply
from zkrebalancer.rebalance.view import Member

MISSING = -1


class Grounds:
    """The nodes with what was given, as they were read first.

    A claim is false only if they were the same before and after the claim was read: a leader may have given or taken
    the partition in between.
    """

    def __init__(self) -> None:
        """Know no node yet."""
        self._zxids: dict[str, int] = {}  # path -> last change of the node, MISSING if there is none
        self.is_overtaken = False  # whether one of them has changed since

    def note(self, path: str, reply: Reply) -> None:
        """Note a node that is read for the first time."""
        self._zxids[path] = _zxid(reply)

    def compare(self, path: str, reply: Reply) -> None:
        """Compare a node that is read again."""
        self.is_overtaken = self.is_overtaken or _zxid(reply) != self._zxids.get(path, MISSING)


def is_doubtful(member: Member) -> bool:
    """Whether something that a member has written is not believed because of what it was given."""
    is_unreadable = member.owners is None and not member.refused
    return member.given is not None and (bool(member.false_claims) or is_unreadable)


def _zxid(reply: Reply) -> int:
    return reply.stat.modified_zxid if isinstance(reply, Content) else MISSING
