"""Failpoints for tests: the process kills itself (SIGKILL) right after a named step.

`ZKREBALANCER_FAILPOINT=KIND[:N]` names an event kind (`rebalance_requested`, `rebalance_planned`, `command_sent`,
`command_acked`, `rebalance_finished`, …) and which occurrence of it, the first by default;
`ZKREBALANCER_FAILPOINT=multi[:N]` kills right after the N-th transaction is sent to ZooKeeper, so that its outcome is
unknown; `ZKREBALANCER_FAILPOINT=/region/merged/[:N]` right after the N-th that writes a node with that in its path.
"""

from __future__ import annotations

import os
import signal

from zkrebalancer.protocol.calls import Check, Multi
from zkrebalancer.protocol.errors import ConfigurationError

VARIABLE = "ZKREBALANCER_FAILPOINT"


class Failpoint:
    """Counts the steps with one name. Without a failpoint, as in production, a step costs one comparison."""

    def __init__(self, setting: str | None) -> None:
        """`setting` is KIND or KIND:N, None for no failpoint; raises ConfigurationError if N is not a number."""
        self.kind, _, count = (setting or "").partition(":")
        if count and not count.isdigit():
            raise ConfigurationError(f"{VARIABLE}={setting}: KIND or KIND:N is expected")
        self._left = int(count or 1)

    def is_sent_with(self, call: Multi) -> bool:
        """Whether sending this transaction is the named step."""
        if not self.kind.startswith("/"):
            return self.kind == "multi"
        return any(self.kind in operation.path for operation in call.operations if not isinstance(operation, Check))

    def passed(self, kind: str) -> None:
        """Count a step, and kill the process if it is the named one."""
        if kind == self.kind:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
