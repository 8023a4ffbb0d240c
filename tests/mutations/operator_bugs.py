"""Deliberate bugs of operators' commands."""

from __future__ import annotations

from tests.mutations.editing import Edit
from tests.mutations.mutation import Mutation

OPERATOR_MUTATIONS = (
    Mutation(
        "a reset ends after its first transaction",
        None,
        (Edit("reset_offsets.reset_offsets", "while writes: pause.write(zk, writes)", "pass"),),
        hostile="reset_offsets",
        seeds=30,
    ),
    Mutation(
        "an import writes nothing",
        None,
        (Edit("move_offsets.import_offsets", "write_offsets(zk, group, known, offsets, pause)", "pass"),),
        hostile="import_offsets",
        seeds=30,
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
        seeds=30,
    ),
    Mutation(
        "a killed reset leaves a pause that nobody ends",
        25,
        (Edit("Expiry._end", "if self._mark is not None and self._what.mark(known) == self._mark:", "if False:"),),
        hostile="reset_offsets",
        seeds=30,
    ),
    Mutation(
        "a restore ends after its first transaction",
        None,
        (Edit("_Barrier.write", "operations = operations[count:]", "return"),),
        hostile="restore",
        seeds=100,
    ),
    Mutation(
        "a restore replaces the tree of consumers that run",
        None,
        (Edit("backup._refuse_live_tree", "if consumers:", "if False:"),),
        hostile="restore",
        seeds=60,
    ),
    Mutation(
        "a consumer joins a group in a tree that a restore replaces",
        30,
        (Edit("Join._group_listed", "if self.is_restoring:", "if False:"),),
        hostile="restore",
        seeds=60,
    ),
    Mutation(
        "a member of a region registers in a tree that a restore replaces",
        None,
        (Edit("Member.register", "if self.is_restoring or (", "if ("),),
        in_regions=True,
    ),
    Mutation(
        "a restored region goes on without a reset",
        None,
        (Edit("backup._portable_region", 'pending="restored from a backup"', "pending=None"),),
        in_regions=True,
        seeds=5,
    ),
    Mutation(
        "a restored generation is that of the backup",
        None,
        (Edit("CountingOn.after", "counter + self._step", "counter"),),
        hostile="restore",
        seeds=60,
    ),
    Mutation(
        "a backup reads from a server that lags",
        None,
        (Edit("backup.back_up", "zk.perform(Sync(paths.CONSUMERS), ABSENT)", ""),),
        hostile="back_up",
        seeds=60,
    ),
    Mutation(
        "a restore of deleted offsets writes nothing",
        None,
        (Edit("restore_offsets.restore_offsets", "write_offsets(zk, group, known, ___, pause)", "pass"),),
        hostile="restore_offsets",
        seeds=60,
    ),
)
