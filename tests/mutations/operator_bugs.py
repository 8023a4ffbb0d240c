"""Deliberate bugs of operators' commands."""

from __future__ import annotations

from tests.mutations.editing import Edit
from tests.mutations.mutation import Mutation

OPERATOR_MUTATIONS = (
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
        seeds=30,
    ),
)
