"""Checks server addresses, for the command line and the agent alike. Pure."""

from __future__ import annotations

import re

_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+):([0-9]{1,5})")
_CHROOT = re.compile(r"/|(/[^/\s]+)+")
MAX_PORT = 65_535
KAFKA_VARIABLES = "ZKREBALANCER_KAFKA_"  # prefix; a librdkafka setting in capitals follows, such as SASL_PASSWORD


def servers_fault(text: str) -> str | None:
    """Return what is wrong with `HOST:PORT[,…]`, None if it is valid; an IPv6 address needs brackets."""
    for server in text.split(","):
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found[2]) <= MAX_PORT:
            return f"expected HOST:PORT[,…], but {server!r:.80} is not HOST:PORT"
    return None


def server_fault(text: str) -> str | None:
    """Return what is wrong with one `HOST:PORT`, None if it is valid."""
    if "," in text:
        return f"expected one HOST:PORT, but {text!r:.80} names several"
    fault = servers_fault(text)
    return None if fault is None else fault.replace("HOST:PORT[,…]", "HOST:PORT", 1)


def zookeeper_fault(text: str) -> str | None:
    """Return what is wrong with `HOST:PORT[,…][/CHROOT]`, None if it is valid."""
    servers, slash, chroot = text.partition("/")
    if slash and not _is_path(slash + chroot):
        return f"expected HOST:PORT[,…][/CHROOT], but {slash + chroot!r:.80} is not a path"
    fault = servers_fault(servers)
    return None if fault is None else fault.replace("HOST:PORT[,…]", "HOST:PORT[,…][/CHROOT]", 1)


def _is_path(path: str) -> bool:
    """Whether ZooKeeper accepts the path; the client would resolve `.` and `..`, or refuse them."""
    return bool(_CHROOT.fullmatch(path)) and path.isprintable() and {".", ".."}.isdisjoint(path.split("/"))
