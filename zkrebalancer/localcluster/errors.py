"""Errors of a local cluster; each message is one line with the failure, its place, and a remedy."""

from __future__ import annotations

from zkrebalancer.protocol.errors import RebalancerError


class LocalClusterError(RebalancerError):
    """The cluster, or one of its servers, could not be started, reached or stopped."""


class ServerStartError(LocalClusterError):
    """A server ended or did not answer at its start; the message names its log, the note has the log's last lines."""


class MissingToolError(LocalClusterError):
    """A required tool is missing or too old: a JDK, PySpark, a C compiler."""


class JarError(LocalClusterError):
    """A jar is missing, or its SHA-256 sum is wrong; the message names the jar."""
