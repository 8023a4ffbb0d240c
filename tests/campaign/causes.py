"""Maps each kind of fault to the function that causes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from tests.campaign import node_faults, process_faults, server_faults, shard_faults
from tests.campaign.company import Company
from tests.campaign.schedule import Fault

Cause = Callable[[Company, Fault], AbstractContextManager[str]]
CAUSES: Mapping[str, Cause] = {
    "kill-agent": process_faults.kill_agent,
    "kill-agent-at-step": process_faults.kill_agent_at_step,
    "kill-coordinator": process_faults.kill_coordinator,
    "kill-leader-at-step": process_faults.kill_leader_at_step,
    "restart-coordinator": process_faults.restart_coordinator,
    "suspend-agent": process_faults.suspend,
    "suspend-agent-briefly": process_faults.suspend,
    "suspend-leader": process_faults.suspend,
    "expire-agent": process_faults.expire,
    "expire-leader": process_faults.expire,
    "cut-agent": process_faults.cut,
    "cut-all": process_faults.cut,
    "refuse-agent": process_faults.break_link,
    "refuse-leader": process_faults.break_link,
    "silence-agent": process_faults.break_link,
    "silence-leader": process_faults.break_link,
    "slow-agent": process_faults.break_link,
    "slow-leader": process_faults.break_link,
    "lose-reply-agent": process_faults.lose,
    "lose-reply-leader": process_faults.lose,
    "lose-request-agent": process_faults.lose,
    "lose-request-leader": process_faults.lose,
    "kill-zookeeper-leader": server_faults.kill_zookeeper,
    "kill-zookeeper-follower": server_faults.kill_zookeeper,
    "suspend-zookeeper": server_faults.suspend_zookeeper,
    "lose-quorum": server_faults.lose_quorum,
    "fill-disk": server_faults.fill_disk,
    "jump-clock": process_faults.jump_clock,
    "deny-node": node_faults.deny,
    "garble-node": node_faults.garble,
    "delete-owner": node_faults.delete_owner,
    "steal-command": node_faults.steal_command,
    "forge-claim": node_faults.forge_claim,
    "restart-broker": server_faults.restart_broker,
    "join": process_faults.join,
    "leave": process_faults.leave,
    "churn": process_faults.churn,
    "switch-mode": process_faults.switch_mode,
    "set-shards": shard_faults.set_shards,
    "damage-shards": shard_faults.damage_shards,
    "grow-topic": server_faults.grow_topic,
    "create-topic": server_faults.create_topic,
    "delete-topic": server_faults.delete_topic,
}
