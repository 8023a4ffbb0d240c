"""A tree is secured while others write it: a list that was changed meanwhile is not replaced, a change is noticed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import cast

import pytest

from tests.unit.operations.model_client import ModelClient
from zkrebalancer.operations import secure_tree
from zkrebalancer.operations.secure_tree import (
    Finding,
    Outcome,
    SecurityChangedError,
    read_principals,
    walk,
    write_principals,
)
from zkrebalancer.protocol import paths, rights
from zkrebalancer.protocol.calls import (
    Call,
    Done,
    GetRights,
    ListChildren,
    NodeRights,
    Refusal,
    Refused,
    Reply,
    RightsCall,
    SetRights,
)
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.rights import Principals
from zkrebalancer.runtime.zk import BlockingZk

WHO = Principals(("sasl:c",))
OPEN = {rights.WORLD: rights.ALL}


class RightsClient(ModelClient):
    """Also keeps access control lists; `before_rights` is what another program does just before the next change."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, tuple[Mapping[str, str], int]] = {}  # path -> rights and version
        self.before_rights: Callable[[], None] | None = None
        self.closed: set[str] = set()  # to this client, which may list no children there
        self.hidden: set[str] = set()  # its rights cannot be read either

    def perform(self, call: Call | RightsCall, expected: Collection[Refusal] = ()) -> Reply:
        if not isinstance(call, GetRights | SetRights):
            is_closed = isinstance(call, ListChildren) and call.path in self.closed | self.hidden
            return Refused(Refusal.NO_AUTH) if is_closed else super().perform(call, expected)
        if isinstance(call, SetRights) and self.before_rights is not None:
            act, self.before_rights = self.before_rights, None
            act()
        reply = self._answer(call)
        require_expected(call, reply, expected)
        return reply

    def _answer(self, call: RightsCall) -> Reply:
        if call.path not in self.model.nodes:
            return Refused(Refusal.NO_NODE)
        if call.path in self.hidden:
            return Refused(Refusal.NO_AUTH)
        present, version = self.lists.get(call.path, (OPEN, 0))
        if isinstance(call, GetRights):
            return NodeRights(present, version)
        if call.version not in {-1, version}:
            return Refused(Refusal.BAD_VERSION)
        self.lists[call.path] = call.rights, version + 1
        return Done()


def repaired(client: RightsClient) -> Outcome:
    return walk(cast("BlockingZk", client), WHO, repair=True)


def test_a_list_that_changed_since_it_was_read_is_left_for_the_next_run() -> None:
    """In `_judge_all`, set the rights at any version."""
    client = RightsClient()
    client.create(paths.GROUPS)
    by_another = {"sasl:c": rights.ALL, rights.WORLD: "r", "sasl:later": "r"}
    client.before_rights = lambda: client.lists.update({paths.CONSUMERS: (by_another, 1)})
    assert repaired(client).left == [paths.CONSUMERS]
    assert client.lists[paths.CONSUMERS] == (by_another, 1)
    assert repaired(client).findings == [Finding(paths.CONSUMERS, {"sasl:later": "r"}, {})]
    assert repaired(client) == Outcome(nodes=2)


@pytest.mark.parametrize("was_there", [False, True])
def test_who_is_who_is_read_again_once_nobody_else_can_write_it(was_there: bool) -> None:
    """In `write_principals`, believe that it is what was written, although everybody could write it until then."""
    client = RightsClient()
    if was_there:
        client.create(paths.SECURITY, rights.encode(WHO))
    forged = rights.encode(Principals(("sasl:rogue",)))
    client.before_rights = lambda: client.set(paths.SECURITY, forged)
    with pytest.raises(SecurityChangedError, match="has just been changed by another program; try again"):
        write_principals(cast("BlockingZk", client), WHO)
    write_principals(cast("BlockingZk", client), WHO)
    assert read_principals(cast("BlockingZk", client))[0] == WHO


def test_the_whole_tree_is_walked_and_what_cannot_be_read_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `walk`, look below the last portion of nodes only; in `_children`, forget those that cannot be listed."""
    monkeypatch.setattr(secure_tree, "MAX_AT_ONCE", 1)
    client = RightsClient()
    groups = [paths.group(name) for name in "abc"]
    for path in groups:
        client.create(f"{path}/ids")
    client.closed, client.hidden = {groups[1]}, {groups[2]}
    outcome = repaired(client)
    assert {finding.path for finding in outcome.findings} >= {groups[0], f"{groups[0]}/ids", groups[1]}
    assert sorted(outcome.unreadable) == groups[1:]


def test_the_nodes_of_a_group_that_is_named_are_there_before_its_members() -> None:
    client = RightsClient()
    write_principals(cast("BlockingZk", client), Principals(("sasl:c",), groups={"g": ("sasl:g",)}))
    assert client.model.nodes.keys() >= {f"{paths.group('g')}/{name}" for name in paths.GROUP_CHILDREN}
