"""The consistent region: results of a group exactly once. `ConsistentRegion` is the public API."""

from consumer_agent.region.consistent_region import ConsistentRegion
from consumer_agent.region.forced import ForcedRegion
from consumer_agent.region.kafka_sink import KafkaSink
from consumer_agent.region.own_state import Checkpoint
from consumer_agent.region.sink import Advance, Claim, Sink
from consumer_agent.region.sinks import as_sink

__all__ = ["Advance", "Checkpoint", "Claim", "ConsistentRegion", "ForcedRegion", "KafkaSink", "Sink", "as_sink"]
