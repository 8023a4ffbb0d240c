"""pause: members stand still for 12 s and for 40 s, as in a long garbage collection, and go on.

With default settings, 12 s are longer than a session of this project's agents (10 s), and 40 s are shorter than one of
Kafka's clients (45 s): who takes a pause for a death moves partitions for nothing, who does not leaves them unread.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Freeze, Pause, Scenario, Step, Thaw

PAUSES_S = (12.0, 40.0)


def _steps(cast: Cast) -> Sequence[Step]:
    members = (cast.chosen(len(PAUSES_S)) * len(PAUSES_S))[: len(PAUSES_S)]  # in a group of two, one stands still twice
    return [
        Step(f"pause-{pause_s:.0f}s", name, (Freeze(name), Pause(pause_s), Thaw(name)))
        for pause_s, name in zip(PAUSES_S, members, strict=True)
    ]


SCENARIO = Scenario(name="pause", about="members stand still for 12 s and for 40 s, and go on", steps=_steps)
