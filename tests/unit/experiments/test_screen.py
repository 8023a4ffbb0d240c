"""The live screen and its tables, as text."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Literal

import pytest
from rich import box
from rich.console import Console, RenderableType

from tests.unit.experiments.event_maker import A, B, delivered, event, fetcher, finish, plan, produced
from zkrebalancer.experiments.demo.screen import Course, rebalance_table, render
from zkrebalancer.experiments.picture import Picture


def text_of(renderable: RenderableType, width: int = 100, colours: bool = False) -> str:
    colour_system: Literal["truecolor"] | None = "truecolor" if colours else None
    console = Console(file=io.StringIO(), width=width, force_terminal=colours, color_system=colour_system)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def picture() -> Picture:
    picture = Picture()
    joined = [event("member_joined", member=member) for member in (A, B)]
    owned = [fetcher("fetcher_started", A, [0, 1]), fetcher("fetcher_started", B, [3])]
    records = [produced(0, 1_499), delivered(A, 0, 999)]
    for one in [*joined, *owned, *plan(1), finish(1), *plan(2), *records]:
        picture.apply(one)
    picture.produced["t", 2] = 0
    return picture


def course(*titles: str) -> Course:
    return Course("heading", 10, [(float(number), title) for number, title in enumerate(titles)])


def test_each_consumer_and_unowned_partitions_have_a_row(picture: Picture) -> None:
    lines = text_of(render(course("begin"), picture, 5.0, 100, 40)).splitlines()
    assert "demo-1  ■■··   2" in lines
    assert "demo-2  ···■   1" in lines
    assert "unowned ··■·   1" in lines


def test_two_consumers_have_two_colours(picture: Picture) -> None:
    drawn = text_of(render(course("begin"), picture, 5.0, 100, 40), colours=True)
    assert "\x1b[32m■" in drawn
    assert "\x1b[36m■" in drawn


def test_too_many_partitions_are_shown_as_a_bar_within_the_screen(picture: Picture) -> None:
    picture.apply(fetcher("fetcher_started", A, list(range(200))))
    lines = text_of(render(course("begin"), picture, 5.0, 60, 40), width=60).splitlines()
    assert max(map(len, lines)) <= 60
    (row,) = [line for line in lines if line.startswith("demo-1  ■■")]
    assert row.endswith(" 200")
    assert len(row) > 50


def test_the_last_steps_are_shown_with_the_current_one_marked(picture: Picture) -> None:
    drawn = text_of(render(course("one", "two", "three", "four"), picture, 5.0, 100, 40))
    assert "step 4 of 10" in drawn
    assert "one" not in drawn
    assert "✓   2.0 s  three" in drawn
    assert "▸   3.0 s  four" in drawn


def test_the_detail_belongs_to_the_current_step() -> None:
    steps = course("one", "two")
    steps.detail = "12 of 57 jars"
    assert "two: 12 of 57 jars" in text_of(render(steps, Picture(), 5.0, 100, 40))


def test_records_and_leader(picture: Picture) -> None:
    assert "produced 1,500   demo: 500 to read" in text_of(render(course("one"), picture, 5.0, 100, 40))
    assert "no leader" in text_of(render(course("one"), picture, 5.0, 100, 40))
    picture.apply(event("leader_elected", group=None, epoch=1, brokerid=2))
    assert "coordinator-2 leads" in text_of(render(course("one"), picture, 5.0, 100, 40))


def test_a_low_screen_shows_only_the_last_rebalances(picture: Picture) -> None:
    for generation in range(3, 30):
        for one in plan(generation):
            picture.apply(one)
    drawn = text_of(render(course("one"), picture, 5.0, 100, 24))
    assert drawn.count("member-joined") < 10
    assert "29" in drawn.splitlines()[-3]


def test_the_table_shows_moves_and_unknown_times(picture: Picture) -> None:
    lines = text_of(rebalance_table(picture.rebalances)).splitlines()
    assert any(" 1 of 4 " in line and "31 ms" in line and "0 ms" in line and "finished" in line for line in lines)
    assert any(" - " in line and "under way" in line for line in lines)


@pytest.mark.parametrize("frame", [None, box.SIMPLE_HEAD])
def test_the_table_fits_into_80_columns(picture: Picture, frame: box.Box | None) -> None:
    (first, second) = picture.rebalances
    wide = replace(first, group="demo-eager", cause="partitions-added", settled_ms=12_345.0, pause_ms_max=12_345.0)
    lines = text_of(rebalance_table([first, second, replace(wide, moved=24, partitions=50)], frame), 80).splitlines()
    assert all("…" not in line for line in lines)
    assert "demo-eager" in lines[-1]
