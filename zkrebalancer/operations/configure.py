"""Changes a group's settings: `KEY=VALUE` pairs, validated together and written with a version check."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zkrebalancer.assignment import WITH_OPTIONS, strategy
from zkrebalancer.assignment.balanced.options import read_options
from zkrebalancer.observe.inspection import GroupReport, UnknownGroupError
from zkrebalancer.operations import audit
from zkrebalancer.protocol import last_change, paths, settings
from zkrebalancer.protocol.calls import ABSENT, CHANGED, Content, Done, Get, Multi, Refusal, Refused, SetContent
from zkrebalancer.protocol.errors import ConfigurationError, NodeContentError, RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

OPTION = "options."  # prefix of a strategy's option
WHOLES = ("slo", "options")  # settings whose parts are set one by one
# Others are set by `reset-offsets`, `groups freeze --for` and `groups resume`.
RESERVED = frozenset(
    {*WHOLES, "starts_paused", "paused_by", "frozen_until_ms", "approved_moves", "approved_generation"}
)


Altered = Callable[[GroupReport], GroupSettings]  # from a group, as it was read, to its new settings
MAX_TRIES = 3  # to name an operator in settings that others change at that moment


class SettingsChangedError(RebalancerError):
    """The settings changed since they were read; nothing was written."""

    retriable = True


def read_settings(zk: BlockingZk, group: str) -> tuple[GroupSettings, Content]:
    """Return a group's settings, and their node as read.

    Raises:
        InvalidNameError, UnknownGroupError: the name is illegal, or the group does not exist.
        NodeContentError, ZooKeeperRefusedError: the settings are invalid, or may not be read; it names their node.

    """
    path = paths.group(paths.validate_name("group", group))
    node = zk.perform(Get(path), ABSENT)
    if not isinstance(node, Content):
        raise UnknownGroupError(f"there is no group {group}; `groups list` shows all groups")
    try:
        return settings.decode(node.content), node
    except NodeContentError as error:
        raise type(error)(f"{path}: {error}") from None


def write_settings(zk: BlockingZk, group: str, node: Content, new: GroupSettings, what: str) -> None:
    """Replace the settings in `node`, keep unknown ones, and log who did what."""
    rewrite(zk, group, node, settings.changed(node.content, dataclasses.asdict(new)), what)


def rewrite(zk: BlockingZk, group: str, node: Content, content: bytes, what: str) -> None:
    """Replace the content of `node`, with who did what; log the same.

    Raises:
        SettingsChangedError: the node has changed since it was read.
        NodeContentError: `content` is not a document of settings.
        ZooKeeperRefusedError: it may not be written.

    """
    marked = last_change.noted(content, audit.change(what), node.stat.version)
    write = SetContent(paths.group(group), marked, node.stat.version)
    if not isinstance(zk.perform(Multi((write,)), CHANGED), Done):
        raise SettingsChangedError(f"group {group}: its settings have just changed; check them and try again")
    audit.record(f"{what}, in group {group}")


def name_author(zk: BlockingZk, group: str, what: str) -> None:
    """Name the operator in the group's settings, for something that was done elsewhere.

    This is skipped if the group has no node, or if this user may not change it: the command's audit line remains.
    """
    for _ in range(MAX_TRIES):
        node = zk.perform(Get(paths.group(group)), {*ABSENT, Refusal.NO_AUTH})
        if not isinstance(node, Content):
            return
        try:
            marked = last_change.noted(node.content, audit.change(what), node.stat.version)
        except NodeContentError:
            return  # not JSON; `describe` reports it
        write = SetContent(paths.group(group), marked, node.stat.version)
        reply = zk.perform(Multi((write,)), {*CHANGED, Refusal.NO_AUTH})
        if isinstance(reply, Done) or (isinstance(reply, Refused) and reply.refusal is Refusal.NO_AUTH):
            return


def changed(before: GroupSettings, pairs: Iterable[str]) -> GroupSettings:
    """Return settings with `KEY=VALUE` pairs applied; `KEY=` restores the default. A new `frozen` has no end.

    Raises:
        ConfigurationError: not a pair, an unknown key, or a value that is not allowed; the message names the key.
        UnknownStrategyError, OptionError: an unknown strategy, or an invalid option of it.

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
        whole, dot, part = key.partition(".")
        if dot and whole in WHOLES:
            document[whole] = {k: v for k, v in document[whole].items() if k != part}
            if text:
                document[whole][part] = _value(text)
        elif key not in known:
            raise ConfigurationError(
                f"{key:.80}: there is no such setting; known are {', '.join(known)}, slo.NAME, {OPTION}NAME"
            )
        elif text:
            document[key] = text if isinstance(getattr(before, key), str) else _value(text)
        else:
            document[key] = getattr(GroupSettings(), key)
        if key == "frozen":
            document["frozen_until_ms"] = 0
    after = checked(document)
    strategy(after.strategy)
    read_options(after.options)
    _refuse_unused(after, given)
    return after


def checked(new: GroupSettings | Mapping[str, object]) -> GroupSettings:
    """Return settings as the coordinator will read them; raises ConfigurationError."""
    document = new if isinstance(new, Mapping) else dataclasses.asdict(new)
    try:
        return settings.decode(json.dumps({"version": settings.VERSION, **document}).encode())
    except NodeContentError as error:
        raise ConfigurationError(str(error)) from None


def _refuse_unused(after: GroupSettings, given: Iterable[str]) -> None:
    """Refuse to set what would have no effect; options that are there already may stay, for a later strategy."""
    unknown = sorted({f"slo.{name}" for name in after.slo if name not in settings.SLO}.intersection(given))
    if unknown:
        raise ConfigurationError(f"{unknown[0]:.80}: there is no such level; known are {', '.join(settings.SLO)}")
    unused = [key for key in sorted(given) if key.startswith(OPTION) and key.removeprefix(OPTION) in after.options]
    if unused and after.strategy not in WITH_OPTIONS:
        which = " or ".join(sorted(WITH_OPTIONS))
        raise ConfigurationError(f"{unused[0]}: the strategy {after.strategy} has no options; set strategy={which}")


def _value(text: str) -> Any:  # noqa: ANN401  # what JSON has
    """Parse a value as JSON; anything else is a string."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
