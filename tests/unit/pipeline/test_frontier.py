"""The frontier of a report: which runs make its points, and that it is on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from zkrebalancer.experiments import protocols
from zkrebalancer.pipeline.report import frontier, pictures
from zkrebalancer.pipeline.report.folders import Run, Setting

CENTRAL, KIP848, RANGE = "central-incremental", "kip848", "classic-range"


def run(
    protocol: str, settings: str, seed: int, scenario: str = "scale-out", changes: Sequence[str] = ("add-member",)
) -> Run:
    setting = Setting(scenario, settings, 10, 120, "kafka-4")
    steps = [{"name": name} for name in ("before", *changes)]
    return Run(f"{protocol}/{scenario}/{settings}/{seed}", protocol, setting, seed, 5, (), "", "", steps=steps)


def measured(figures: Mapping[Run, tuple[float | None, float, float]]) -> pd.DataFrame:
    names = ["run", "protocol", "settled_ms", "rest_cpu_ms_per_s", "rest_requests_per_s", "first_record_ms"]
    firsts = [None if values[0] is None else values[0] + 200 for values in figures.values()]
    rows = [(one.name, one.protocol, *of, first) for (one, of), first in zip(figures.items(), firsts, strict=True)]
    return pd.DataFrame(rows, columns=names)


def figures() -> dict[Run, tuple[float | None, float, float]]:
    found: dict[Run, tuple[float | None, float, float]] = {
        run(CENTRAL, "tuned", 1): (70, 400, 20),
        run(CENTRAL, "default", 1): (75, 390, 20),
        run(KIP848, "default", 1): (5_000, 300, 2),
    }
    for seed in (1, 2, 3):
        found[run(KIP848, "tuned", seed)] = (500 + seed, 350 + seed, 21)
        found[run(KIP848, "heartbeat-50", seed)] = (60 + seed, 700 + seed, 201)
    return found


def test_a_point_is_the_median_of_the_runs_with_one_heartbeat() -> None:
    of = figures()
    found = frontier.frontiers(list(of), measured(of))
    assert found == {
        Setting("scale-out", "tuned", 10, 120, "kafka-4"): {
            CENTRAL: [frontier.Point("tuned", 1, 70, 270, (400, 20))],
            KIP848: [
                frontier.Point("tuned", 3, 502, 702, (352, 21)),
                frontier.Point("50 ms", 3, 62, 262, (702, 201)),
            ],
        }
    }


def test_points_are_in_the_order_of_their_heartbeats() -> None:
    """In `frontiers`, sort by cost: a line would go back and forth where the cost varies by chance."""
    of = figures()
    of[run(KIP848, "heartbeat-1000", 1)] = (1_000, 360, 30)
    (found,) = frontier.frontiers(list(of), measured(of)).values()
    assert [point.heartbeat for point in found[KIP848]] == ["1000 ms", "tuned", "50 ms"]


def test_there_is_no_frontier_of_one_heartbeat() -> None:
    of = {one: values for one, values in figures().items() if not one.setting.settings.startswith("heartbeat")}
    assert frontier.frontiers(list(of), measured(of)) == {}


def test_there_is_no_frontier_of_several_kinds_of_change() -> None:
    """In `frontiers`, look at no kinds: the point of a kill and a return was halfway between the two."""
    kinds = [run(KIP848, settings, 1, "crash", ["kill", "return"]) for settings in ("tuned", "heartbeat-50")]
    of = {**figures(), kinds[0]: (3_000, 350, 21), kinds[1]: (2_900, 700, 201)}
    assert [setting.scenario for setting in frontier.frontiers(list(of), measured(of))] == ["scale-out"]


def test_settings_are_those_of_the_experiments() -> None:
    """In `frontier`, let tuned heartbeats differ, or who has none: the pipeline imports nothing of the experiments."""
    assert frontier.TUNED_MS == protocols.TUNED_HEARTBEAT_MS
    swept = {name for name, of in protocols.PROTOCOLS.items() if of.settings.keys() & protocols.HEARTBEATS_MS}
    assert set(frontier.WITHOUT_HEARTBEATS) == protocols.PROTOCOLS.keys() - swept
    of = {run(KIP848, settings, 1): (1.0, 1.0, 1.0) for settings in protocols.TUNINGS}
    (found,) = frontier.frontiers(list(of), measured(of)).values()
    names = [point.heartbeat for point in found[KIP848]]
    assert names == ["3000 ms", "1000 ms", "tuned", "200 ms", "100 ms", "50 ms", "20 ms"]


def test_settings_that_differ_by_more_than_heartbeats_are_left_out() -> None:
    of = figures()
    expected = frontier.frontiers(list(of), measured(of))
    for settings in ("mine", "heartbeat-", "heartbeat-fast"):
        of[run(KIP848, settings, 1)] = (1, 1, 1)
    assert frontier.frontiers(list(of), measured(of)) == expected


def test_only_runs_that_count_and_have_figures_make_points() -> None:
    of = figures()
    of[run(RANGE, "heartbeat-50", 1)] = (None, 300, 100)
    left_out = run(KIP848, "heartbeat-50", 3)
    (found,) = frontier.frontiers([one for one in of if one != left_out], measured(of)).values()
    assert RANGE not in found
    assert found[KIP848][1].runs == 2


def test_the_page_has_the_picture_and_every_point() -> None:
    of: dict[Run, Any] = figures()
    text = "".join(frontier.parts(frontier.frontiers(list(of), measured(of)), pictures.colours([CENTRAL, KIP848])))
    assert "<svg" in text
    assert f"<td>{CENTRAL}</td><td>none</td>" in text, "it has no heartbeats"
    assert ">tuned<" not in text, "it says nothing of how long"
    assert text.count(f">{CENTRAL}<") == 4, "beside its dot in both panels, in the legend, and in the table"
    for cell in (CENTRAL, KIP848, "500 ms", "50 ms", "62 ms", "262 ms", "702"):
        assert cell in text
