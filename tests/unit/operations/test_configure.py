"""Settings of a group: pairs become settings, together or not at all, and nobody's change is overwritten."""

from __future__ import annotations

import json
from typing import cast

import pytest

from tests.unit.operations.model_client import ModelClient
from zkrebalancer.assignment.balanced.options import OptionError
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations.configure import SettingsChangedError, changed, read_settings, write_settings
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import ConfigurationError, InvalidNameError, UnknownStrategyError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

BEFORE = GroupSettings(strategy="balanced", frozen=True, rebalance_debounce_ms=7, options={"move_cost": 2})


def as_zk(client: ModelClient) -> BlockingZk:
    return cast("BlockingZk", client)


@pytest.mark.parametrize(
    ("pairs", "key", "value"),
    [
        (["strategy=range"], "strategy", "range"),
        (["mode=eager"], "mode", "eager"),
        (["frozen=false"], "frozen", False),
        (["frozen="], "frozen", False),
        (["rebalance_timeout_ms=10"], "rebalance_timeout_ms", 10),
        (["rebalance_debounce_ms="], "rebalance_debounce_ms", 50),
        (["static_grace_ms=0"], "static_grace_ms", 0),
        (["strategy="], "strategy", "sticky"),
        (["options.move_cost="], "options", {}),
        (["options.move_cost=3"], "options", {"move_cost": 3}),
        (["options.rack_cost=1"], "options", {"move_cost": 2, "rack_cost": 1}),
    ],
)
def test_a_pair_changes_one_setting(pairs: list[str], key: str, value: object) -> None:
    after = changed(BEFORE, pairs)

    assert getattr(after, key) == value
    others = [name for name in GroupSettings.__dataclass_fields__ if name != key]
    assert {name: getattr(after, name) for name in others} == {name: getattr(BEFORE, name) for name in others}


def test_several_pairs_are_applied_together() -> None:
    after = changed(GroupSettings(), ["strategy=balanced", "options.move_cost=1", "options.rack_cost=2"])

    assert after == GroupSettings(strategy="balanced", options={"move_cost": 1, "rack_cost": 2})


def test_a_value_may_have_an_equals_sign() -> None:
    with pytest.raises(UnknownStrategyError, match="a=b"):
        changed(BEFORE, ["strategy=a=b"])


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ("frozen", "'frozen' is not KEY=VALUE"),
        ("nothing=1", "nothing: there is no such setting; known are strategy, mode, frozen, approve_moves_above, "),
        ("starts_paused=true", "starts_paused: there is no such setting"),
        ("paused_by=me", "paused_by: there is no such setting"),
        ("options={}", "options: there is no such setting"),
        ("frozen=maybe", "frozen must be true or false, not 'maybe'"),
        ("mode=lazy", "mode 'lazy' is not eager or incremental"),
        ("rebalance_timeout_ms=soon", "rebalance_timeout_ms"),
        ("rebalance_timeout_ms=9", "rebalance_timeout_ms"),
        ("rebalance_timeout_ms=" + "[" * 100_000, "rebalance_timeout_ms"),
    ],
)
def test_a_pair_that_cannot_be_set_is_named(pair: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        changed(BEFORE, ["mode=eager", pair] if not pair.startswith("mode") else [pair])
    assert complaint in str(raised.value)


def test_what_is_long_is_shortened_in_a_message() -> None:
    for pair in ("x" * 1_000, "x" * 1_000 + "=1"):
        with pytest.raises(ConfigurationError) as raised:
            changed(BEFORE, [pair])
        assert "x" * 79 in str(raised.value)
        assert "x" * 81 not in str(raised.value)


def test_a_key_twice_is_refused_also_as_an_option() -> None:
    with pytest.raises(ConfigurationError, match="frozen is given twice"):
        changed(BEFORE, ["frozen=true", "frozen=false"])
    with pytest.raises(ConfigurationError, match=r"options\.move_cost is given twice"):
        changed(BEFORE, ["options.move_cost=1", "options.move_cost=2"])


def test_an_option_that_no_strategy_has_is_refused() -> None:
    with pytest.raises(OptionError, match="nonsense"):
        changed(BEFORE, ["options.nonsense=1"])
    with pytest.raises(OptionError, match="move_cost"):
        changed(BEFORE, ["options.move_cost=much"])


def test_an_option_that_would_have_no_effect_is_refused() -> None:
    """What is there already may stay, for another strategy later."""
    sticky = GroupSettings(strategy="sticky", options={"move_cost": 2})
    with pytest.raises(
        ConfigurationError, match=r"options\.move_cost: the strategy sticky has no options; set strategy=b"
    ):
        changed(sticky, ["options.move_cost=1"])
    with pytest.raises(ConfigurationError, match=r"options\.rack_cost: the strategy range has no options"):
        changed(GroupSettings(strategy="balanced"), ["strategy=range", "options.rack_cost=1"])
    assert changed(sticky, ["frozen=true"]).options == {"move_cost": 2}
    assert changed(sticky, ["options.move_cost="]).options == {}
    assert changed(sticky, ["strategy=balanced", "options.move_cost=1"]).options == {"move_cost": 1}


def test_settings_are_read_with_their_node() -> None:
    client = ModelClient()
    client.create(paths.group("g"), b'{"version": 1, "frozen": true}')
    client.set(paths.group("g"), b'{"version": 1, "mode": "eager"}')

    settings, node = read_settings(as_zk(client), "g")

    assert settings == GroupSettings(mode="eager")
    assert (node.content, node.stat.version) == (b'{"version": 1, "mode": "eager"}', 1)


def test_a_group_that_does_not_exist_has_no_settings() -> None:
    with pytest.raises(UnknownGroupError, match="there is no group g;"):
        read_settings(as_zk(ModelClient()), "g")
    with pytest.raises(InvalidNameError):
        read_settings(as_zk(ModelClient()), "a/b")


def test_what_is_written_keeps_what_this_version_does_not_know() -> None:
    client = ModelClient()
    client.create(paths.group("g"), b'{"version": 1, "later": [1], "frozen": true}')
    _settings, node = read_settings(as_zk(client), "g")

    write_settings(as_zk(client), "g", node, GroupSettings(mode="eager"), "did something")

    document = json.loads(client.model.nodes[paths.group("g")].content)
    assert (document["later"], document["frozen"], document["mode"]) == ([1], False, "eager")


def test_settings_that_changed_since_they_were_read_are_not_overwritten() -> None:
    client = ModelClient()
    client.create(paths.group("g"), b'{"version": 1}')
    _settings, node = read_settings(as_zk(client), "g")
    client.meanwhile = lambda: client.set(paths.group("g"), b'{"version": 1, "frozen": true}')

    with pytest.raises(SettingsChangedError, match="group g") as raised:
        write_settings(as_zk(client), "g", node, GroupSettings(mode="eager"), "did something")

    assert raised.value.retriable
    assert client.model.nodes[paths.group("g")].content == b'{"version": 1, "frozen": true}'
