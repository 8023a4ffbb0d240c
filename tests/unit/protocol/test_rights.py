"""The rights of a secured tree: only a consumer itself and the coordinators can change its nodes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vectors.rights import MADE
from zkrebalancer.operations.secure_tree import OWN, Finding, changed_principals, judge, wanted_rights
from zkrebalancer.protocol import paths, rights
from zkrebalancer.protocol.errors import ConfigurationError, NodeContentError
from zkrebalancer.protocol.rights import ALL, WORLD, Principals

WHO = Principals(
    ("sasl:coordinator",), ("sasl:operator",), ("sasl:gateway",), groups={"orders": ("sasl:orders",), "x": ("sasl:x",)}
)
OTHERS = ("sasl:x", WORLD)
BELOW = [paths.group("orders")] + [f"{paths.group('orders')}/{kind}" for kind in paths.GROUP_CHILDREN]
ABOVE = [paths.CONSUMERS, paths.GROUPS, paths.COORDINATOR, paths.COORDINATOR_EPOCH, paths.SECURITY, paths.SERVED]


def of(path: str) -> rights.Rights:
    found = rights.rights_of(path, WHO, OWN)
    assert found is not None
    return found


@pytest.mark.parametrize("path", [*BELOW, *MADE])
def test_a_group_is_closed_to_others(path: str) -> None:
    assert not of(path).keys() & set(OTHERS)


@pytest.mark.parametrize("path", ABOVE)
def test_everybody_may_at_most_read_what_is_above_the_groups(path: str) -> None:
    assert of(path)[WORLD] == "r"
    assert "sasl:orders" not in of(path)


@pytest.mark.parametrize("path", [path for path in [*BELOW, *MADE] if "/offsets" not in path and "/region" not in path])
def test_consumers_of_a_group_change_nothing_of_each_other(path: str) -> None:
    """What they create in `quarantine` they may also delete there, to make room."""
    allowed = {"r", "c", "d"} if path.endswith("/quarantine") else {"r", "c"}
    assert {*of(path).get("sasl:orders", "")} <= allowed
    if path.count("/") == 5:
        assert "c" not in of(path).get("sasl:orders", "")


OF_OPERATORS = {  # beyond reading
    "": "wcd",
    "/ids": "d",
    "/quarantine": "d",
    "/offsets": "wcd",
    "/offsets/t/0": "wcd",
    "/weights": "wcd",
    "/deleted_offsets/0": "wcd",
    "/lives/t": "wcd",
    "/region/requests": "c",
}


@pytest.mark.parametrize("path", [*BELOW, *MADE])
def test_an_operator_acts_for_no_member_and_no_coordinator(path: str) -> None:
    """In `_in_group`, let operators write what members own, or commands."""
    found = of(path).get("sasl:operator", "")
    assert found.replace("r", "") == OF_OPERATORS.get(path.removeprefix(paths.group("orders")), "")


def test_the_own_nodes_of_a_consumer() -> None:
    assert of(paths.ids("orders", "c"))[OWN] == of(paths.owners("orders", "c"))[OWN] == "rw"
    assert of(paths.channel("orders", "c")) == {OWN: "rwd", "sasl:coordinator": "rcd", "sasl:operator": "r"}
    assert [path for path in [*BELOW, *MADE, *ABOVE] if OWN in of(path)] == MADE[:3]


@pytest.mark.parametrize(
    ("below", "of_members", "of_operators"),
    [
        ((), "rw", "r"),
        (("order",), "r", "r"),
        (("merged", "3.0"), "r", "r"),
        (("members",), "rc", "r"),
        (("requests",), "rc", "rc"),
        (("requests", "reset-1"), "r", "r"),
        (("contributions",), "r", "r"),
        (("contributions", "3"), "rc", "r"),
        (("contributions", "3/m.0"), "r", "r"),
        (("initial", "t"), "rc", "r"),
        (("initial", "t/0"), "rw", "r"),
    ],
)
def test_members_of_a_region_change_nothing_that_its_leader_writes(
    below: tuple[str, ...], of_members: str, of_operators: str
) -> None:
    found = of(paths.region("orders", *below))
    assert (found["sasl:orders"], found["sasl:operator"], found["sasl:coordinator"]) == (of_members, of_operators, ALL)


def test_brokers_are_left_alone_unless_they_are_named() -> None:
    assert rights.rights_of("/brokers/topics/t", WHO, OWN) is None
    named = Principals(("sasl:c",), brokers=("sasl:kafka",))
    assert rights.rights_of("/brokers/topics/t", named, OWN) == {"sasl:c": ALL, "sasl:kafka": ALL, WORLD: "r"}
    assert rights.rights_of("/cluster/id", named, OWN) == rights.rights_of("/brokers", named, OWN)


@pytest.mark.parametrize(
    "path", ["/", "/config", "/consumers/an-old-group/ids", "/consumers/coordinators/ids", "/brokersx", "/cluster"]
)
def test_what_is_not_ours_is_left_alone(path: str) -> None:
    """In `rights_of`, take every name that begins with "coordinator" for ours: consumers lose their own group."""
    assert rights.rights_of(path, WHO, OWN) is None


@pytest.mark.parametrize("path", [*BELOW, *MADE])
def test_a_list_fits_into_what_is_counted_for_it(path: str) -> None:
    assert rights.size_bytes(of(path)) <= rights.MAX_ACL_BYTES


# ---- /consumers/security


GROUP_NAMES = st.text(max_size=5) | st.sampled_from(["g", "a.b", "\u00fc"])


@given(GROUP_NAMES, st.lists(st.sampled_from(["sasl:a", "x509:CN=b,O=c", "digest:u:" + "x" * 28]), max_size=3))
def test_what_is_written_can_be_read(group: str, names: list[str]) -> None:
    try:
        who = rights.checked(Principals(("sasl:c",), operators=tuple(names), groups={group: tuple(names)}))
    except ConfigurationError:
        return
    assert rights.decode(rights.encode(who)) == who


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
keys = st.sampled_from([*rights.ROLES, "version", "groups"])


@given(
    st.binary(max_size=50) | st.dictionaries(keys, json_values | st.just(1)).map(lambda some: json.dumps(some).encode())
)
def test_any_content_is_read_or_refused(content: bytes) -> None:
    with suppress(NodeContentError):
        assert rights.decode(content).coordinators


@pytest.mark.parametrize(
    ("who", "text"),
    [
        (Principals(()), "at least one coordinator"),
        (Principals(("coordinator",)), "is not SCHEME:NAME"),
        (Principals((WORLD,)), "names no single user"),
        (Principals(("digest:user:password",)), "security identity"),
        (Principals(("sasl:c",), groups={"a/b": ("sasl:x",)}), "group name"),
        (Principals(("sasl:c",), groups={"g": tuple(f"sasl:{n}" * 9 for n in range(10))}), "too many principals"),
        (Principals(tuple(f"sasl:{n}" * 9 for n in range(10))), "too many principals"),
    ],
)
def test_principals_that_cannot_be_used(who: Principals, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        rights.checked(who)


# ---- securing a tree


@pytest.mark.parametrize("name", ["world:anyone", "auth:x"])
def test_a_principal_is_somebody_in_particular(name: str) -> None:
    """In `_check_principal`, accept one of them."""
    with pytest.raises(ConfigurationError, match="names no single user"):
        rights.checked(Principals(("sasl:c",), operators=(name,)))


def test_principals_of_a_newer_version_are_refused() -> None:
    """In `decode`, do not look at the version."""
    content = rights.encode(Principals(("sasl:c",))).replace(b'"version":1', b'"version":2')
    with pytest.raises(NodeContentError, match="version 2"):
        rights.decode(content)


def test_gateways_may_delete_what_groups_have() -> None:
    """They delete groups and offsets for clients. In `_in_group`, leave it out."""
    who = Principals(("sasl:c",), gateways=("sasl:gateway",))
    for path in (paths.offsets("orders", "t"), paths.channel("orders"), f"{paths.group('orders')}/static"):
        found = rights.rights_of(path, who, OWN)
        assert found is not None
        assert "d" in found["sasl:gateway"], path


def test_an_open_node_is_found_and_closed() -> None:
    finding = judge(paths.GROUPS, {WORLD: ALL}, WHO)
    assert finding is not None
    assert finding.excess == {WORLD: "wcda"}
    assert finding.missing == {"sasl:coordinator": ALL, "sasl:operator": "rc", "sasl:gateway": "rc"}
    assert judge(paths.GROUPS, wanted_rights(paths.GROUPS, finding, WHO), WHO) is None


@pytest.mark.parametrize("path", MADE[:3])
def test_the_node_of_a_consumer_without_an_own_login_goes_to_its_group(path: str) -> None:
    finding = judge(path, {WORLD: ALL}, WHO)
    assert finding is not None
    closed = wanted_rights(path, finding, WHO)
    assert not closed.keys() & {*OTHERS, OWN}
    assert {*closed["sasl:orders"]} >= {*of(path)[OWN]}
    again = judge(path, closed, WHO)
    assert again is not None
    assert again.is_of_group
    assert not again.excess
    assert not again.missing


@pytest.mark.parametrize("path", MADE[:3])
def test_the_node_of_a_consumer_with_an_own_login_stays(path: str) -> None:
    found = {("digest:member:abc" if name == OWN else name): letters for name, letters in of(path).items()}
    assert judge(path, found, WHO) is None
    del found["sasl:operator"]  # who was not known then
    assert judge(path, found, WHO) is None
    finding = judge(path, {**found, "sasl:x": "w"}, WHO)
    assert finding is not None
    assert finding.excess == {"sasl:x": "w"}


@pytest.mark.parametrize("path", MADE[:3])
def test_a_coordinator_that_is_named_after_a_consumer_registered_may_not_use_its_nodes(path: str) -> None:
    """In `judge`, expect there what was known then: the next leader could command nobody, and nothing said so."""
    found = {("digest:member:abc" if name == OWN else name): letters for name, letters in of(path).items()}
    named = replace(WHO, coordinators=("sasl:coordinator", "sasl:later"))
    assert judge(path, found, named) == Finding(path, {}, {}, unknown=("sasl:later",))
    assert judge(path, {**found, "sasl:later": found["sasl:coordinator"]}, named) is None


def test_roles_and_groups_that_are_given_replace_the_former() -> None:
    first = changed_principals(None, "sasl:coordinator", {"operators": ["sasl:o"]}, {"g": ["sasl:g"]})
    assert first == Principals(("sasl:coordinator",), ("sasl:o",), groups={"g": ("sasl:g",)})
    assert changed_principals(first, "sasl:coordinator", {}, {}) == first
    second = changed_principals(first, "sasl:coordinator", {"operators": ["sasl:p"]}, {"g": [], "h": ["sasl:h"]})
    assert second == Principals(("sasl:coordinator",), ("sasl:p",), groups={"h": ("sasl:h",)})
    with pytest.raises(ConfigurationError, match="would lock itself out"):
        changed_principals(first, "sasl:o", {}, {})


def test_roles_that_are_not_written_have_nobody() -> None:
    """In `decode`, expect every role: a coordinator of a version with fewer roles wrote the node."""
    found = rights.decode(b'{"version": 1, "coordinators": ["sasl:c"], "groups": {}}')
    assert (found.coordinators, found.operators, found.gateways) == (("sasl:c",), (), ())
