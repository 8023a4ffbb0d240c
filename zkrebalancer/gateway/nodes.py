"""In which node gateways store a group, computed from its name alone."""

from __future__ import annotations

from urllib.parse import quote

from zkrebalancer.gateway.layout import BUCKETS
from zkrebalancer.group_protocol.placement import bucket_of


def node_name(group: str) -> str:
    """Return the name of a group's node, encoded, because Kafka allows any text as a group's name."""
    name = quote(group, safe="")
    return name.replace(".", "%2E") if not name.strip(".") else name or "%"


def node_path(group: str) -> str:
    """Return the path of a group's node."""
    return f"{BUCKETS}/{bucket_of(group)}/{node_name(group)}"
