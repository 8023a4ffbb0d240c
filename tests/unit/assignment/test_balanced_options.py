"""Options of `balanced` are validated strictly; every error names the key."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from zkrebalancer.assignment.balanced.options import BalancedOptions, OptionError, read_options


def test_without_options_the_defaults_apply() -> None:
    assert read_options({}) == BalancedOptions()


def test_every_option_can_be_set() -> None:
    given: dict[str, Any] = {
        "peak_cost": 2,
        "uneven_cost": 0.5,
        "rack_cost": 1.5,
        "move_cost": 0,
        "min_gain": 0.25,
        "spread_cost": 3.0,
        "catch_up_s": 5,
        "load_floor": 0.2,
        "max_moves_per_rebalance": 10,
        "max_partitions_per_member": None,
        "max_search_steps": 0,
        "pinned": {"orders": [0, 2]},
    }
    assert given.keys() == {field.name for field in dataclasses.fields(BalancedOptions)}
    options = read_options(given)
    assert dataclasses.asdict(options) == {**given, "pinned": {"orders": frozenset({0, 2})}}
    assert isinstance(options.peak_cost, float)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("move_costs", 1, "options.move_costs: is unknown; known are peak_cost, uneven_cost, "),
        ("a\nb", 1, r'options."a\nb": is unknown'),
        ("move_cost", "high", 'options.move_cost: must be a number from 0 to 2147483647, not "high"'),
        ("move_cost", -0.1, "options.move_cost: must be a number from 0 to 2147483647, not -0.1"),
        ("move_cost", True, "options.move_cost: must be a number from 0 to 2147483647, not true"),
        ("move_cost", None, "options.move_cost: must be a number from 0 to 2147483647, not null"),
        ("peak_cost", float("inf"), "options.peak_cost: must be a number from 0"),
        ("peak_cost", float("nan"), "options.peak_cost: must be a number from 0"),
        ("peak_cost", 10**400, "options.peak_cost: must be a number from 0"),
        ("catch_up_s", 0, "options.catch_up_s: must be a number from 0.001 to 2147483647, not 0"),
        ("load_floor", [1], "options.load_floor: must be a number from 0 to 2147483647, not a list"),
        ("max_search_steps", 1.0, "options.max_search_steps: must be an integer from 0 to 2147483647, not 1.0"),
        ("max_search_steps", None, "options.max_search_steps: must be an integer from 0"),
        ("max_moves_per_rebalance", -1, "options.max_moves_per_rebalance: must be an integer from 0"),
        ("max_partitions_per_member", 2**31, "options.max_partitions_per_member: must be an integer from 0"),
        ("pinned", ["orders"], "options.pinned: must be an object, not a list"),
        ("pinned", {"orders": 1}, "options.pinned.orders: must be a list, not 1"),
        ("pinned", {"orders": [0, -1]}, "options.pinned.orders[1]: must be an integer from 0 to"),
        (
            "pinned",
            {"orders": [{}]},
            "options.pinned.orders[0]: must be an integer from 0 to 2147483647, not an object",
        ),
    ],
)
def test_an_option_error_is_one_line_with_the_key(key: str, value: object, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({key: value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
