"""Deliberate bugs of operators' commands."""

from __future__ import annotations

from tests.mutations.editing import Edit
from tests.mutations.mutation import Mutation

OPERATOR_MUTATIONS = (
    Mutation(
        "a reset looks for consumers only before it pauses starts",
        None,
        (Edit("starts_pause.starts_paused", "refuse_consumers(zk, group)", "pass"),),
        hostile="reset_offsets",
        seeds=300,
    ),
    Mutation(
        "a reset goes on without its pause",
        25,
        (
            Edit(
                "Pause.write",
                "SetContent(paths.group(self.group), content, self.version)",
                "SetContent(paths.group(self.group), content)",
            ),
        ),
        hostile="reset_offsets",
        seeds=60,
    ),
    Mutation(
        "a reset ends after its first transaction",
        None,
        (Edit("reset_offsets.reset_offsets", "while writes: pause.write(zk, writes)", "pass"),),
        hostile="reset_offsets",
        seeds=60,
    ),
    Mutation(
        "settings are written without the version that was read",
        None,
        (
            Edit(
                "configure.rewrite",
                "SetContent(paths.group(group), marked, node.stat.version)",
                "SetContent(paths.group(group), marked)",
            ),
        ),
        hostile="operate",
        seeds=60,
    ),
    Mutation(
        "a killed reset leaves a pause that nobody ends",
        25,
        (Edit("Expiry._end", "if self._mark is not None and self._what.mark(known) == self._mark:", "if False:"),),
        hostile="reset_offsets",
        seeds=60,
    ),
)
