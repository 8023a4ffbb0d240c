"""The tree of named errors. Each says whether trying again can help and which exit code it means."""

from __future__ import annotations


class RebalancerError(Exception):
    """Base of every error that this project raises on purpose; its text is one line for a person."""

    retriable = False
    exit_code = 1


class InvalidNameError(RebalancerError, ValueError):
    """A group, client or topic name that may not become part of a ZooKeeper path."""

    exit_code = 2


class ConfigurationError(RebalancerError, ValueError):
    """A setting that is unknown, of the wrong type or out of its range."""

    exit_code = 2


class PatternError(RebalancerError, ValueError):
    """A topic pattern that is not a linear-time (RE2) regular expression."""

    exit_code = 2


class UnknownStrategyError(RebalancerError, ValueError):
    """An assignment strategy of a name that there is not."""

    exit_code = 2


class NodeContentError(RebalancerError, ValueError):
    """What stands in a ZooKeeper node is not what `docs/protocol.md` says; the node is refused."""


class CommandError(NodeContentError):
    """A command that is too large, not msgpack, or not of the schema; it is quarantined, never executed."""


class ZooKeeperUnavailableError(RebalancerError):
    """No ZooKeeper server answered in time, or the connection broke during a call."""

    retriable = True


class ChrootMissingError(RebalancerError):
    """The chroot path of the connection string does not exist in this ZooKeeper."""

    exit_code = 2


class ConsumerRebalanceFailedError(RebalancerError):
    """A group did not reach its target within `max_rebalance_retries` tries; names the late consumers."""

    retriable = True

    def __init__(self, group: str, late_members: tuple[str, ...], tries: int) -> None:
        """Name the group, the consumers that did not answer and how often they were asked."""
        super().__init__(
            f"group {group}: rebalance failed after {tries} tries, still waiting for {', '.join(late_members)}"
        )
        self.group = group
        self.late_members = late_members
