"""The tree of named errors, each with its exit code and whether a retry can help."""

from __future__ import annotations


class RebalancerError(Exception):
    """Base of every error that this project raises on purpose; its message is one line for the user."""

    retriable = False
    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        """Let pools hand it from process to process: Python would call the class with the text alone."""
        return _unpickled, (type(self), self.args, self.__dict__)


def _unpickled(kind: type[RebalancerError], args: tuple[object, ...], state: dict[str, object]) -> RebalancerError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InvalidNameError(RebalancerError, ValueError):
    """A group, client or topic name that must not become part of a ZooKeeper path."""

    exit_code = 2


class ConfigurationError(RebalancerError, ValueError):
    """A setting that is unknown, mistyped or out of range."""

    exit_code = 2


class PatternError(RebalancerError, ValueError):
    """A topic pattern that is not a linear-time (RE2) regular expression."""

    exit_code = 2


class UnknownStrategyError(RebalancerError, ValueError):
    """There is no assignment strategy of this name."""

    exit_code = 2


class NodeContentError(RebalancerError, ValueError):
    """The content of a ZooKeeper node violates `docs/reference/protocol.md`; the node is rejected."""


class NewerVersionError(NodeContentError):
    """A node was written by a newer release, which knows what it means."""


class TooManyPartitionsError(NodeContentError):
    """A node names far more partitions than exist; it is rejected before its ranges are expanded."""


class CommandError(NodeContentError):
    """A command that is too large, not msgpack, or violates the schema; it is quarantined, never executed."""


class ZooKeeperUnavailableError(RebalancerError):
    """No ZooKeeper server answered in time, or the connection broke during a call."""

    retriable = True


class ZooKeeperLoginError(RebalancerError):
    """No ZooKeeper server accepts the login or the certificate, or has a certificate that is accepted."""


class ZooKeeperRefusedError(RebalancerError):
    """ZooKeeper refused a call for a reason that the caller does not expect, such as a missing right."""

    def __init__(self, text: str, path: str, right: str | None) -> None:
        """Name the refused call and a remedy; `right`: the missing right, None if the cause is another."""
        super().__init__(text)
        self.path = path
        self.right = right


class RequestTooLargeError(RebalancerError):
    """A transaction exceeds ZKREBALANCER_MAX_REQUEST_BYTES; it was not sent."""


class ChrootMissingError(RebalancerError):
    """The chroot in the connection string does not exist in this ZooKeeper."""

    exit_code = 2


class ConsumerRebalanceFailedError(RebalancerError):
    """A group did not reach its target assignment within `max_rebalance_retries` tries."""

    retriable = True

    def __init__(self, group: str, late_members: tuple[str, ...], tries: int) -> None:
        """Name the group, the members whose acknowledgement is missing, and the number of tries."""
        super().__init__(
            f"group {group}: rebalance failed after {tries} tries, still waiting for {', '.join(late_members)}"
        )
        self.group = group
        self.late_members = late_members
