from __future__ import annotations

import pytest

from zkrebalancer.pipeline.sweep.grid import MAX_CELLS, Cell, Grid, read_grid
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError


def test_a_given_axis_replaces_the_default() -> None:
    grid = read_grid(["members=3,4,3", "strategy=sticky"])
    assert (grid.members, grid.strategy, grid.skew) == ((3, 4), ("sticky",), Grid().skew)


def test_every_cell_appears_once() -> None:
    grid = Grid((2,), (10, 20), (0.0,), (0.1,), ("sticky",))
    assert grid.cells(2) == [Cell(2, count, 0.0, 0.1, "sticky", repeat) for count in (10, 20) for repeat in (0, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("member=3", "--grid member=3: NAME=VALUE,… is expected, NAME one of members, partitions, skew"),
        ("members", "--grid members: NAME=VALUE"),
        ("members=0", "--grid members: whole numbers from 1 to 10000 are expected, not 0"),
        ("skew=high", "--grid skew: numbers from 0 to 3 are expected, not high"),
        ("churn=nan", "--grid churn: numbers from 0 to 1 are expected, not nan"),
        ("strategy=best", "--grid strategy: some of range, .* are expected, not best"),
    ],
)
def test_a_wrong_axis_is_named(text: str, message: str) -> None:
    with pytest.raises(RebalancerError, match="^" + message) as raised:
        read_grid([text])
    assert raised.value.exit_code == 2


def test_the_size_of_a_grid_is_limited() -> None:
    with pytest.raises(ConfigurationError, match=f"make 432000 cells; the maximum is {MAX_CELLS}"):
        Grid().cells(2_000)
