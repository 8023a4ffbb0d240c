"""Places members in processes: many share one, but a member to be killed or suspended has its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from zkrebalancer.experiments.scenarios.model import Cast, Freeze, Join, Kill, Step

MEMBERS_PER_PROCESS = 5


def place(cast: Cast, steps: Iterable[Step], members_per_process: int) -> Mapping[str, Sequence[str]]:
    """Return process name -> the members that ever run in it.

    A fault hits a whole process, so a member that is the target of one runs alone.
    """
    actions = [action for step in steps for action in step.actions]
    joining = [action.member for action in actions if isinstance(action, Join)]
    alone = {action.member for action in actions if isinstance(action, Kill | Freeze)}
    names = dict.fromkeys([*cast.present, *joining])
    together = [name for name in names if name not in alone]
    chunks = [together[at : at + members_per_process] for at in range(0, len(together), members_per_process)]
    chunks += [[name] for name in names if name in alone]
    return {f"members-{number:02d}": chunk for number, chunk in enumerate(chunks, 1)}
