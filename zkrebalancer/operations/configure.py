"""Changes a group's settings: `KEY=VALUE` pairs, checked as a whole, written only if nobody else wrote meanwhile."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from zkrebalancer.assignment import strategy
from zkrebalancer.assignment.balanced.options import read_options
from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.protocol import fields, paths, settings
from zkrebalancer.protocol.calls import Content, Done, Get, Multi, SetContent
from zkrebalancer.protocol.errors import ConfigurationError, NodeContentError, RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

OPTION = "options."  # what follows is the name of one of the strategy's options
RESERVED = frozenset({"options", "starts_paused"})  # set one by one, and by `reset-offsets` only


class SettingsChangedError(RebalancerError):
    """Somebody else changed the settings at the same moment; nothing was written."""

    retriable = True


def read_settings(zk: BlockingZk, group: str) -> tuple[GroupSettings, Content]:
    """Return a group's settings, and the node as it was read.

    Raises:
        InvalidNameError, UnknownGroupError: the name is none, or there is no such group.
        NodeContentError: what stands there cannot be read.

    """
    node = zk.perform(Get(paths.group(paths.validate_name("group", group))))
    if not isinstance(node, Content):
        raise UnknownGroupError(f"there is no group {group}; `groups list` shows those that are")
    return settings.decode(node.content), node


def write_settings(zk: BlockingZk, group: str, node: Content, new: GroupSettings) -> None:
    """Write settings in the place of those that were read; raises SettingsChangedError."""
    if not write_into(zk, group, node, dataclasses.asdict(new)):
        raise SettingsChangedError(
            f"group {group}: its settings were changed at this moment; look again, and try again"
        )


def write_into(zk: BlockingZk, group: str, node: Content, values: Mapping[str, object]) -> bool:
    """Change settings in the node that was read and keep all others, also unknown ones; False if it is another by now.

    Raises:
        NodeContentError: what was read is no settings.

    """
    document = fields.read_document("group settings", node.content) if node.content else {"version": settings.VERSION}
    write = SetContent(paths.group(group), fields.write_document({**document, **values}), node.stat.version)
    return isinstance(zk.perform(Multi((write,))), Done)


def changed(before: GroupSettings, pairs: Iterable[str]) -> GroupSettings:
    """Return settings with `KEY=VALUE` pairs applied; `KEY=` alone puts back the default.

    Raises:
        ConfigurationError: a pair is none, a key is unknown, or a value is not allowed; the text names the key.
        UnknownStrategyError, OptionError: the strategy, or one of its options.

    """
    known = [entry.name for entry in dataclasses.fields(GroupSettings) if entry.name not in RESERVED]
    document = dataclasses.asdict(before)
    given: set[str] = set()
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"{pair!r:.80} is not KEY=VALUE")
        if key in given:
            raise ConfigurationError(f"{key:.80} is given twice")
        given.add(key)
        if key.startswith(OPTION):
            document["options"] = {k: v for k, v in document["options"].items() if k != key.removeprefix(OPTION)}
            if text:
                document["options"][key.removeprefix(OPTION)] = _value(text)
        elif key not in known:
            raise ConfigurationError(f"{key:.80}: there is no such setting; known are {', '.join(known)}, {OPTION}NAME")
        elif text:
            document[key] = text if isinstance(getattr(before, key), str) else _value(text)
        else:
            document[key] = getattr(GroupSettings(), key)
    try:
        after = settings.decode(json.dumps({"version": settings.VERSION, **document}).encode())
    except NodeContentError as error:
        raise ConfigurationError(str(error)) from None
    strategy(after.strategy)
    read_options(after.options)
    return after


def _value(text: str) -> Any:  # noqa: ANN401  # what JSON has
    """Read a value as JSON has it; what is none is a text, and refused by whoever expects a number."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
