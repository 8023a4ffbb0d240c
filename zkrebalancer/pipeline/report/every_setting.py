"""Every setting of every protocol that was compared, as its runs have recorded them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zkrebalancer.pipeline import page
from zkrebalancer.pipeline.report.folders import PARTS, Run, natural
from zkrebalancer.pipeline.report.sentences import in_order

INTRO = (
    "Of members' clients, servers, coordinators, groups, gateways, controllers, the topic mirror and producers, and "
    "how all of them were run. "
    "A setting that is not here, or is -, has its default, or belongs to something that the protocol does not have."
)
Key = tuple[str, str]  # part and name


def tables(runs: Iterable[Run]) -> Iterator[str]:
    """Return a table for each tuning, with a column for each protocol."""
    by_tuning: dict[str, dict[str, dict[Key, set[str]]]] = {}
    for run in runs:
        column = by_tuning.setdefault(run.setting.settings, {}).setdefault(run.protocol, {})
        for key, value in run.details.items():
            column.setdefault(key, set()).add(value)
    for tuning, columns in sorted(by_tuning.items(), key=lambda item: natural(item[0])):
        protocols = in_order(columns)
        keys = {key for found in columns.values() for key in found}
        rows = [
            [" ".join(key), *(", ".join(sorted(columns[one].get(key, {"-"}))) for one in protocols)]
            for key in sorted(keys, key=_place)
        ]
        yield page.heading(f"{tuning.capitalize()} settings", 3)
        yield page.table(["", *protocols], rows)


def _place(key: Key) -> tuple[int, str]:
    part, name = key
    return PARTS.index(part), name
