"""What can go wrong with a local cluster; each text is one line that says what, where and what to do."""

from __future__ import annotations

from zkrebalancer.protocol.errors import RebalancerError


class LocalClusterError(RebalancerError):
    """The cluster, or one of its servers, could not be started, reached or ended."""


class ServerStartError(LocalClusterError):
    """A server ended or did not answer while it was started; names its log, whose last lines are the error's note."""


class MissingToolError(LocalClusterError):
    """Something that must be installed first is missing or too old: a JDK, PySpark."""


class JarError(LocalClusterError):
    """A jar is missing or is not the one whose SHA-256 sum this project keeps; the text names the jar."""
