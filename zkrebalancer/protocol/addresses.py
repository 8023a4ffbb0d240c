"""What may be written where servers are asked for; the commands and the agent refuse the same things. Pure."""

from __future__ import annotations

import re

_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+):([0-9]{1,5})")
_CHROOT = re.compile(r"/|(/[^/\s]+)+")
MAX_PORT = 65_535
KAFKA_VARIABLES = "ZKREBALANCER_KAFKA_"  # and a setting of librdkafka in capitals: SASL_PASSWORD


def servers_fault(text: str) -> str | None:
    """Say what is wrong with `HOST:PORT[,…]`, None if nothing is; an IPv6 address stands in brackets."""
    for server in text.split(","):
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found[2]) <= MAX_PORT:
            return f"HOST:PORT[,…] is expected, and {server!r:.80} is not HOST:PORT"
    return None


def zookeeper_fault(text: str) -> str | None:
    """Say what is wrong with `HOST:PORT[,…][/CHROOT]`, None if nothing is."""
    servers, slash, chroot = text.partition("/")
    if slash and not _CHROOT.fullmatch(slash + chroot):
        return f"HOST:PORT[,…][/CHROOT] is expected, and {slash + chroot!r:.80} is not a path"
    fault = servers_fault(servers)
    return None if fault is None else fault.replace("HOST:PORT[,…]", "HOST:PORT[,…][/CHROOT]", 1)
