"""The process that foresees a plan for the pages: `python -m zkrebalancer.coordinator.pages.plan_process`.

It reads the group from ZooKeeper as `groups plan` does, so that a large group or a slow strategy delays no other group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zkrebalancer.coordinator.asked_process import answer_all
from zkrebalancer.observe import inspection
from zkrebalancer.operations.foresight import foresee
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk

MAX_MOVES_SHOWN = 200
MAX_MEMBERS_SHOWN = 200


def main() -> None:
    """Answer until the coordinator closes the pipe."""
    answer_all(plan)


def plan(zookeeper: str, kafka: Mapping[str, str] | None, group: str) -> dict[str, Any]:
    """Return what a rebalance of a group would move now, or why that is not known."""
    try:
        with BlockingZk(zookeeper) as zk:
            report = inspection.read_group(zk, group)
            foreseen = foresee(zk, report, report.settings, kafka)
    except RebalancerError as error:
        return {"error": str(error)}
    changed = [name for name, count in foreseen.before.items() if foreseen.after[name] != count]
    rest = [name for name in foreseen.before if foreseen.after[name] == foreseen.before[name]]
    shown = [*changed, *rest][:MAX_MEMBERS_SHOWN]
    return {
        "generation": report.generation,
        "strategy": report.settings.strategy,
        "move_count": len(foreseen.moves),
        "moves": [
            {"topic": topic, "partition": partition, "from": giver, "to": taker}
            for (topic, partition), giver, taker in foreseen.moves[:MAX_MOVES_SHOWN]
        ],
        "member_count": len(foreseen.before),
        "members": [{"member": name, "before": foreseen.before[name], "after": foreseen.after[name]} for name in shown],
        "unassigned": foreseen.unassigned,
        "notes": foreseen.notes,
    }


if __name__ == "__main__":
    main()
