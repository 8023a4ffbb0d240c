"""The one error of this package."""

from __future__ import annotations

from zkrebalancer.protocol.errors import RebalancerError


class FrameError(RebalancerError, ValueError):
    """A frame that violates Kafka's protocol, or fields that cannot be written in a version."""
