"""Who may do what to which node of a secured tree, as one function of the path. Pure.

The node `/consumers/security` names who is who; a tree without it is open. ZooKeeper inherits no rights, so whoever
creates a node gives it these. Deleting a node is a right of its parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.errors import ConfigurationError, InvalidNameError, NodeContentError

VERSION = 1
ROLES = ("coordinators", "operators", "gateways", "brokers")
WORLD = "world:anyone"
ALL = "rwcda"
MAX_ACL_BYTES = 512  # of one node; it is counted for each node that a transaction creates
_ENTRY_BYTES = 12  # rights, and the lengths of scheme and name
_SHARED = ("ids", "owners", "channel")  # nodes below which consumers create theirs
_OF_KAFKA = frozenset({"brokers", "cluster"})  # nodes at the top that Kafka writes, or the topic mirror

Rights = dict[str, str]  # principal ("SCHEME:NAME") -> its rights, letters of ALL in that order


@dataclass(frozen=True, slots=True)
class Principals:
    """Who is who, each as "SCHEME:NAME" like in ZooKeeper's access control lists."""

    coordinators: tuple[str, ...]
    operators: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()  # who writes /brokers: Kafka, or the topic mirror; none: it stays as it is
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of_group(self, group: str) -> tuple[str, ...]:
        """Return who runs consumers of a group; gateways do for all groups."""
        return self.groups.get(group, ()) + self.gateways


def rights_of(path: str, who: Principals, own: str) -> Rights | None:
    """Return the rights at a node, None where this tree decides nothing; `own`: the consumer that owns the node."""
    if path.split("/", 2)[1] in _OF_KAFKA:
        if not who.brokers:
            return None
        return _merged((who.coordinators, ALL), (who.brokers, ALL), ((WORLD,), "r"))
    segments = path.strip("/").split("/")
    if segments[0] != "consumers" or (len(segments) > 1 and segments[1] not in paths.OWN):
        return None
    if len(segments) >= 3 and segments[1] == "groups":
        return _in_group(segments[2], segments[3:], who, own)
    rights = [(who.coordinators, ALL)]
    if path in {paths.CONSUMERS, paths.GROUPS}:
        rights += [(who.operators, "rc"), (who.gateways, "rc"), ((WORLD,), "r")]
    elif segments[1] == "gateways":
        rights += [(who.operators, "r"), (who.gateways, "rwcd")]
    else:
        rights += [((WORLD,), "r")]
    return _merged(*rights)


def _in_group(group: str, below: list[str], who: Principals, own: str) -> Rights:
    members, kind = who.of_group(group), below[0] if below else ""
    rights = [(who.coordinators, ALL)]
    if not below:
        rights += [(who.operators, "rwcd"), (who.groups.get(group, ()), "r"), (who.gateways, "rc")]
    elif kind in _SHARED and len(below) == 1:
        rights += [(who.operators, "rd" if kind == "ids" else "r")]  # deleting a registration evicts
        rights += [(members, "rc"), (who.gateways, "d")]  # whose session outlives its members
    elif kind == "channel" and len(below) == 2:
        rights = [((own,), "rwd"), (who.coordinators, "rcd"), (who.operators, "r")]
    elif kind in {"ids", "owners"} and len(below) == 2:
        rights = [((own,), "rw"), (who.coordinators, "r"), (members, "r"), (who.operators, "r")]
    elif kind == "offsets":
        rights += [(who.operators, "rwcd"), (members, "rwc"), (who.gateways, "d")]
    elif kind == "quarantine":
        rights += [(who.operators, "rd"), (members, "rcd")]
    elif kind == "static":
        rights += [(who.operators, "r"), (members, "r"), (who.gateways, "d")]
    elif kind == "region":
        rights += [(who.operators, "rc" if below[1:] == ["requests"] else "r"), (members, _in_region(below[1:]))]
    elif kind in {"weights", "deleted_offsets", "lives"}:
        rights += [(who.operators, "rwcd"), (members, "r")]
    else:
        rights += [(who.operators, "r"), (members, "r")]
    return _merged(*rights)


def _in_region(below: list[str]) -> str:
    """Return what the members may do to a node of their group's region: never to what the leader writes."""
    kind, depth = below[0] if below else "", len(below)
    if (kind in {"members", "requests"} and depth == 1) or (kind == "contributions" and depth == 2):  # of a round
        return "rc"
    if kind == "initial":
        return "rw" if depth == 3 else "rc"  # of a partition
    return "r" if kind else "rw"


def is_of_consumer(path: str) -> bool:
    """Whether a consumer creates the node for itself alone, with a credential that only it knows."""
    segments = path.strip("/").split("/")
    return len(segments) == 5 and segments[:2] == ["consumers", "groups"] and segments[3] in _SHARED


def ordered(letters: str) -> str:
    """Return each right once, in the order of ALL."""
    return "".join(letter for letter in ALL if letter in letters)


def _merged(*given: tuple[Iterable[str], str]) -> Rights:
    merged: Rights = {}
    for principals, letters in given:
        for principal in principals:
            merged[principal] = ordered(merged.get(principal, "") + letters)
    return merged


def size_bytes(rights: Rights) -> int:
    """Return the bytes that an access control list adds to a request."""
    return 4 + sum(_ENTRY_BYTES + len(principal.encode()) - 1 for principal in rights)


# ---- the node's content


def encode(who: Principals) -> bytes:
    """Return the content of `/consumers/security`."""
    roles = {role: list(getattr(who, role)) for role in ROLES}
    groups = {group: list(names) for group, names in sorted(who.groups.items())}
    return fields.write_document({"version": VERSION, **roles, "groups": groups})


def decode(content: bytes) -> Principals:
    """Return what `encode` wrote; raises NodeContentError."""
    what = paths.SECURITY
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    roles = {role: _principals(role, document.get(role, [])) for role in ROLES}
    groups = fields.mapping(what, {"groups": {}, **document}, "groups")
    try:
        return checked(
            Principals(**roles, groups={group: _principals(group, names) for group, names in groups.items()})
        )
    except ConfigurationError as error:
        raise NodeContentError(f"{what}: {error}") from None


def _principals(kind: str, names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise NodeContentError(f"{paths.SECURITY}: {kind!r:.80} must be a list of texts")
    return tuple(names)


def checked(who: Principals) -> Principals:
    """Return `who` if it can be used.

    Raises:
        ConfigurationError: there is no coordinator, a name is no principal, or a node would have too many of them.

    """
    if not who.coordinators:
        raise ConfigurationError("at least one coordinator is needed")
    for role in ROLES:
        for principal in getattr(who, role):
            _check_principal(principal)
    for group, names in who.groups.items():
        try:
            paths.validate_name("group", group)
        except InvalidNameError as error:
            raise ConfigurationError(str(error)) from None
        for principal in names:
            _check_principal(principal)
    for group in who.groups or ("",):
        longest = size_bytes(_merged((who.of_group(group), "r"), (who.coordinators + who.operators, "r")))
        if longest + size_bytes({"digest:" + "x" * 40: ""}) > MAX_ACL_BYTES:
            raise ConfigurationError(f"group {group}: too many principals; their names may take {MAX_ACL_BYTES} bytes")
    return who


def _check_principal(principal: str) -> None:
    scheme, colon, name = principal.partition(":")
    if not (scheme.isalnum() and scheme.isascii() and colon and name and name.isprintable()):
        raise ConfigurationError(f"{principal!r:.80} is not SCHEME:NAME, such as sasl:coordinator")
    if scheme in {"world", "auth"}:
        raise ConfigurationError(f"{principal!r:.80} names no single user")
    if scheme == "digest" and len(name.rpartition(":")[2]) != 28:
        raise ConfigurationError("a principal of digest is digest:USER:HASH, with the hash of `security identity`")
