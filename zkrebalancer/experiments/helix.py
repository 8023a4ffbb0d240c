"""Controllers of Apache Helix in a lab: a leader and a standby, which assign the partitions of a group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from zkrebalancer.experiments.java_programs import config_options
from zkrebalancer.experiments.lab import Lab, NotReachedError
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.weights import Rates

WEIGHT_S = 1_000  # a partition weighs as many records as it gets in this time: Helix's weights are integers


def start_controller(
    lab: Lab,
    name: str,
    command: Sequence[str],
    groups: Iterable[str],
    settings: Mapping[str, str],
    options: Mapping[str, object],
) -> None:
    """Start a controller of groups, with settings and the members' options; return when it leads or stands by."""
    of_groups = [text for group in groups for text in ("--group", group)]
    lab.wait_events_of(lab.start_members(name, [*command, *of_groups, *config_options(settings)], options))


def weights_option(rates: Rates) -> Mapping[str, str]:
    """Return the option that gives a controller the weights of a topic's partitions, which have one slot each."""
    [(topic, partitions)] = rates.items()
    weights = ",".join(str(round(WEIGHT_S * rate)) for [rate] in partitions)
    return {"--weights": f"{topic}:{weights}"}


def wait_leader(lab: Lab, group: str) -> str:
    """Return the name of the leading controller's process; raises NotReachedError if none leads in time."""
    lab.wait_for("a leading controller", lambda: _leader(lab, group) is not None)
    leader = _leader(lab, group)
    if leader is None:
        raise NotReachedError("the leading controller is gone again")
    return leader


def _leader(lab: Lab, group: str) -> str | None:
    found = lab.zk.perform(Get(f"/{group}/CONTROLLER/LEADER"), ABSENT)
    return str(json.loads(found.content)["id"]) if isinstance(found, Content) else None
