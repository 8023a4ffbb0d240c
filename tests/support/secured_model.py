"""The rights of a secured tree on a ZooKeeper in memory: every call is judged by `protocol.rights`, for its caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tests.support.zk_model import Change, Right, ZkModel, parent
from zkrebalancer.protocol import rights
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Operation,
    SetContent,
)
from zkrebalancer.protocol.rights import Principals

COORDINATOR, OPERATOR, GATEWAY = "sasl:coordinator", "sasl:operator", "sasl:gateway"
OWN = "digest:member:own"
LETTERS = {Right.READ: "r", Right.WRITE: "w", Right.CREATE: "c", Right.DELETE: "d"}


def who(*groups: str) -> Principals:
    """Return who is who: one login for each role, and one for each group."""
    return Principals((COORDINATOR,), (OPERATOR,), (GATEWAY,), groups={group: (member(group),) for group in groups})


def member(group: str) -> str:
    return f"sasl:{group}"


def may(principal: str, path: str, right: Right, known: Principals, *, is_own: bool = False) -> bool:
    """Whether the lists of a secured tree let somebody do something; `is_own`: who asks has made the node."""
    found = rights.rights_of(path, known, OWN)
    names = (principal, rights.WORLD, *((OWN,) if is_own else ()))
    return found is None or any(LETTERS[right] in found.get(name, "") for name in names)


class SecuredTree(set[tuple[str, str, Right]]):
    """Takes the place of `ZkModel.denied`: has what a secured tree refuses, and counts what was asked in vain.

    `principal` is who has an identity of the model; None: may do everything.
    """

    def __init__(self, model: ZkModel, known: Principals, principal: Callable[[str], str | None]) -> None:
        super().__init__()
        self._known, self._principal = known, principal
        self._identity = model.identity
        self._makers: dict[str, str] = {}  # path -> identity
        self._observe = model.observe
        self.refused: Counter[tuple[str, str, Right]] = Counter()  # by principal
        model.denied, model.observe = self, self._committed

    def __bool__(self) -> bool:
        return True

    def __contains__(self, asked: object) -> bool:
        if not isinstance(asked, tuple):
            return False
        identity, path, right = asked
        principal = self._principal(identity)
        if principal is None or may(principal, path, right, self._known, is_own=self._makers.get(path) == identity):
            return False
        self.refused[principal, path, right] += 1
        return True

    def _committed(self, session_id: int, operations: tuple[Operation, ...], changes: tuple[Change, ...]) -> None:
        for change in changes:
            if change.before is None and rights.is_of_consumer(change.path):
                self._makers[change.path] = self._identity(session_id)
        if self._observe is not None:
            self._observe(session_id, operations, changes)


# ---- what commands do

NEEDED: dict[type[Operation | Call], Right] = {
    Check: Right.READ,
    Create: Right.CREATE,
    Delete: Right.DELETE,
    Get: Right.READ,
    ListChildren: Right.READ,
    SetContent: Right.WRITE,
}


def require_allowed(call: Call, principal: str) -> None:
    """Fail if a secured tree would refuse a command's call."""
    asked: Sequence[Operation | Call] = call.operations if isinstance(call, Multi) else (call,)
    for one in asked:
        right = NEEDED.get(type(one))
        if right is not None and not isinstance(one, Multi):
            path = parent(one.path) if right in {Right.CREATE, Right.DELETE} else one.path
            assert may(principal, path, right, who()), f"{principal} has no right to {right.value} at {path}"
