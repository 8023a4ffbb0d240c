"""Makes a consumer a member of a region that keeps an application's own state consistent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from consumer_agent.consumer import Consumer
from consumer_agent.region.central_source import CentralSource
from consumer_agent.region.own_state import GROUP, PARTITION, Handlers, OwnState
from consumer_agent.region.partition_states import PartitionStates
from consumer_agent.runtime.notices import Tell
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region.documents import Settings
from zkrebalancer.region.limits import DEFAULT_RESET_MS, least_poll_interval_ms, merge_wait_ms, piece_bytes

if TYPE_CHECKING:
    from consumer_agent.config import ConsumerConfig

DEFAULT_RESET_S = DEFAULT_RESET_MS / 1_000
MAX_RESET_S = 86_400.0
MIN_EVERY_S, MAX_EVERY_S = 0.01, 86_400.0

Hooks = Mapping[Tell, Callable[[list[TopicPartition]], object]]


def own_state(
    consumer: Consumer, recovery: str, named: tuple[str, str | None, float, float], handlers: Handlers
) -> tuple[OwnState, Hooks]:
    """Return what keeps the application's state, and its hooks into the consumer's callbacks.

    `named`: the region, the member's name, seconds between checkpoints, seconds that a reset may take.

    Raises:
        ConfigurationError, InvalidNameError: an argument is not allowed, or the consumer's settings are not.

    """
    region, member, every_s, reset_s = named
    if recovery == PARTITION:
        states = PartitionStates(consumer, every_s, handlers)
        return states, states.hooks
    if recovery != GROUP:
        raise ConfigurationError(f"recovery {recovery!r} is for unmodified clients: see ForcedRegion")
    return _rounds(consumer, region, member, every_s, reset_s, handlers)


def _rounds(
    consumer: Consumer, region: str, member: str | None, every_s: float, reset_s: float, handlers: Handlers
) -> tuple[OwnState, Hooks]:
    from consumer_agent.region.rounds import Rounds  # noqa: PLC0415  # takes as long to import as Kafka's client
    from consumer_agent.region.session import RegionSession  # noqa: PLC0415  # as above
    from zkrebalancer.runtime.zk import request_limit  # noqa: PLC0415  # as above

    config = consumer._frontend.config  # noqa: SLF001  # both are parts of one API
    name = paths.validate_name("member", member or config.group_instance_id or config.client_id)
    reset_ms = checked_reset_ms(reset_s)
    _check_config(config, reset_ms)
    source = CentralSource(consumer)
    settings = Settings(region, GROUP, int(1_000 * every_s), reset_ms)
    session = RegionSession(
        config.zookeeper,
        config.zookeeper_security,
        config.session_timeout_ms,
        paths.region(config.group, "order"),
        call_timeout_s=merge_wait_ms(reset_ms, config.max_poll_interval_ms) / 1_000,
    )
    limit = piece_bytes(request_limit(config.zookeeper, config.zookeeper_security).max_bytes)
    return Rounds(config.group, name, settings, source, handlers, session, limit), source.hooks


def checked_every(every_s: object) -> float:
    """Return a number of seconds between checkpoints; raises ConfigurationError."""
    is_number = isinstance(every_s, int | float) and not isinstance(every_s, bool)
    if not is_number or not MIN_EVERY_S <= every_s <= MAX_EVERY_S:  # type: ignore[operator]  # it is a number
        limits = f"{MIN_EVERY_S} to {MAX_EVERY_S:.0f}"
        raise ConfigurationError(f"every_s must be a number of seconds, {limits}, not {every_s!r:.80}")
    return float(every_s)  # type: ignore[arg-type]


def checked_reset_ms(reset_s: object) -> int:
    """Return a number of seconds as milliseconds; raises ConfigurationError."""
    is_number = isinstance(reset_s, int | float) and not isinstance(reset_s, bool)
    if not is_number or not 1 <= reset_s <= MAX_RESET_S:  # type: ignore[operator]  # it is a number
        raise ConfigurationError(f"reset_s must be a number of seconds, 1 to {MAX_RESET_S:.0f}, not {reset_s!r:.80}")
    return int(1_000 * reset_s)  # type: ignore[operator]  # it is a number


def _check_config(config: ConsumerConfig, reset_ms: int) -> None:
    if config.offsets_storage != "zookeeper":
        raise ConfigurationError(
            f"recovery 'group' needs offsets_storage 'zookeeper', not {config.offsets_storage!r}: "
            "a reset moves the offsets of partitions that no member holds"
        )
    least_ms = least_poll_interval_ms(reset_ms, reset_ms)
    if config.max_poll_interval_ms < least_ms:
        raise ConfigurationError(
            f"max_poll_interval_ms is {config.max_poll_interval_ms}; "
            f"reset_s={reset_ms / 1_000:g} needs {least_ms} or more"
        )
