"""A tree is secured while others write it: a list that was changed meanwhile is not replaced, a change is noticed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import cast

import pytest

from tests.support.secured_model import COORDINATOR
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.operations import secure_tree
from zkrebalancer.operations.secure_tree import (
    Finding,
    Outcome,
    SecurityChangedError,
    changed_principals,
    judge,
    read_principals,
    secure,
    walk,
    wanted_rights,
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


class KilledError(Exception):
    """The process that secures the tree was killed."""


class RightsClient(ModelClient):
    """Also keeps access control lists; `before_rights` is what another program does just before the next change."""

    principal = COORDINATOR

    def __init__(self) -> None:
        super().__init__()
        self.lists: dict[str, tuple[Mapping[str, str], int]] = {}  # path -> rights and version
        self.before_rights: Callable[[], None] | None = None
        self.closed: set[str] = set()  # to this client, which may list no children there
        self.hidden: set[str] = set()  # its rights cannot be read either
        self.odd: set[str] = set()  # whose rights have a name that no client decodes
        self.calls_left: int | None = None  # after which it is killed
        self.is_last_lost = False

    def perform(self, call: Call | RightsCall, expected: Collection[Refusal] = ()) -> Reply:
        if self.calls_left is None:
            return self._perform(call, expected)
        self.calls_left -= 1
        reply = None if self.is_last_lost and not self.calls_left else self._perform(call, expected)
        if not self.calls_left or reply is None:
            raise KilledError
        return reply

    def _perform(self, call: Call | RightsCall, expected: Collection[Refusal]) -> Reply:
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
        if isinstance(call, GetRights) and call.path in self.odd:
            return Refused(Refusal.MARSHALLING)
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


@pytest.mark.parametrize("was_there", [False, True])
def test_what_another_program_has_added_since_it_was_read_is_not_lost(was_there: bool) -> None:
    """In `write_principals`, replace whatever is there: two `security init` at once would both end well."""
    client = RightsClient()
    if was_there:
        client.create(paths.SECURITY, rights.encode(WHO))
    before, version = read_principals(cast("BlockingZk", client))
    added = changed_principals(before, WHO.coordinators[0], {}, {"other": ("sasl:other",)})
    ours = changed_principals(before, WHO.coordinators[0], {}, {"ours": ("sasl:ours",)})
    write_principals(cast("BlockingZk", client), added, version)
    with pytest.raises(SecurityChangedError, match="has just been changed by another program; try again"):
        secure(cast("BlockingZk", client), ours, known_version=version)
    assert read_principals(cast("BlockingZk", client))[0] == added


def test_the_whole_tree_is_walked_and_what_cannot_be_read_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `walk`, look below the last portion only, or end at odd rights; in `_children`, forget what is not listed."""
    monkeypatch.setattr(secure_tree, "MAX_AT_ONCE", 1)
    client = RightsClient()
    groups = [paths.group(name) for name in "abc"]
    for path in groups:
        client.create(f"{path}/ids")
    client.create(odd := f"{groups[0]}/owners")
    client.closed, client.hidden, client.odd = {groups[1]}, {groups[2]}, {odd}
    outcome = repaired(client)
    assert {finding.path for finding in outcome.findings} >= {groups[0], f"{groups[0]}/ids", groups[1]}
    assert sorted(outcome.unreadable) == [odd, *groups[1:]]


def test_the_nodes_of_a_group_that_is_named_are_there_before_its_members() -> None:
    client = RightsClient()
    write_principals(cast("BlockingZk", client), Principals(("sasl:c",), groups={"g": ("sasl:g",)}))
    assert client.model.nodes.keys() >= {f"{paths.group('g')}/{name}" for name in paths.GROUP_CHILDREN}


def test_what_brokers_write_is_closed_once_somebody_is_named() -> None:
    """In `ROOTS`, leave `/brokers` or `/cluster` out."""
    client = used_tree()
    secure(cast("BlockingZk", client), Principals(("sasl:c",), brokers=("sasl:kafka",)))
    closed = {"sasl:c": rights.ALL, "sasl:kafka": rights.ALL, rights.WORLD: "r"}
    assert client.lists[paths.topic("t")][0] == client.lists["/brokers"][0] == closed
    assert client.lists["/cluster/id"][0] == closed


def used_tree() -> RightsClient:
    """Return an open tree with two groups, one of which has a member and offsets, and a topic."""
    client = RightsClient()
    for path in (
        *(paths.ids("g", "c-1"), paths.owners("g", "c-1"), paths.offsets("g", "t", 0), paths.group("other")),
        *(paths.topic("t"), "/brokers/ids/1", "/cluster/id", paths.COORDINATOR),
    ):
        client.create(path)
    return client


@pytest.mark.parametrize("is_last_lost", [True, False], ids=["before", "after"])
def test_securing_that_was_killed_at_any_call_is_completed_by_the_next_run(
    is_last_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `walk`, close children before their parents; in `write_principals`, create the node's groups first."""
    monkeypatch.setattr(secure_tree, "MAX_AT_ONCE", 2)
    who = Principals(("sasl:c",), operators=("sasl:o",), groups={"g": ("sasl:g",), "new": ("sasl:n",)})
    whole = used_tree()
    secure(cast("BlockingZk", whole), who)
    for calls in range(1, 500):
        client = used_tree()
        client.calls_left, client.is_last_lost = calls, is_last_lost
        try:
            secure(cast("BlockingZk", client), who)
            break
        except KilledError:
            client.calls_left = None
        closed = {path for path, (given, _) in client.lists.items() if given != OPEN}
        above = {path: path.rpartition("/")[0] for path in closed - {*secure_tree.ROOTS, paths.SECURITY}}
        assert all(parent in closed for parent in above.values()), "a node is closed, and its parent is open"
        kept = {path: given for path, (given, _) in client.lists.items() if not rights.is_of_consumer(path)}
        assert all("a" in given["sasl:c"] for given in kept.values()), "the coordinator may not continue"
        outcome = secure(cast("BlockingZk", client), who)
        assert outcome.left == outcome.unreadable == []
        assert {path: given for path, (given, _) in client.lists.items()} == {
            path: given for path, (given, _) in whole.lists.items()
        }
    assert 50 < calls < 499


def test_who_is_who_that_was_replaced_before_its_parent_was_closed_is_noticed() -> None:
    """In `secure`, believe what was written before the walk."""
    client = RightsClient()
    client.create(paths.GROUPS)

    def forge() -> None:
        client.set(paths.SECURITY, rights.encode(Principals(("sasl:rogue",))))

    def later() -> None:
        client.before_rights = forge  # the second change: that of the parent

    client.before_rights = later
    with pytest.raises(SecurityChangedError, match="has just been changed by another program; try again"):
        secure(cast("BlockingZk", client), WHO)
    secure(cast("BlockingZk", client), WHO)
    assert read_principals(cast("BlockingZk", client))[0] == WHO


def test_a_channel_without_a_login_of_its_own_consumer_is_given_to_its_group() -> None:
    """The group has no other right there."""
    known = Principals((COORDINATOR,), groups={"g": ("sasl:g",)})
    path = paths.channel("g", "a-1")
    finding = judge(path, {"world:anyone": "rwcda"}, known)
    assert finding is not None
    assert wanted_rights(path, finding, known) == {COORDINATOR: "rcd", "sasl:g": "rwd"}


def test_the_list_of_a_consumer_that_does_not_name_a_new_coordinator_is_told_and_left() -> None:
    """In `_judge_all`, set the rights of every finding: what is the consumer's own would become its group's."""
    client = RightsClient()
    known = Principals((COORDINATOR,), groups={"g": ("sasl:g",)})
    path = paths.channel("g", "a-1")
    client.create(path)
    own = {"digest:member:abc": "rwd", COORDINATOR: "rcd"}
    client.lists[path] = own, 1
    secure(cast("BlockingZk", client), known)
    later = Principals((COORDINATOR, "sasl:later"), groups={"g": ("sasl:g",)})
    outcome = secure(cast("BlockingZk", client), later)
    assert [finding.path for finding in outcome.findings if finding.unknown == ("sasl:later",)] == [path]
    assert not outcome.left
    assert client.lists[path] == (own, 1)
