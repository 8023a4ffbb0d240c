"""Deliberate bugs that have an effect only while coordinators share shards of groups."""

from __future__ import annotations

from tests.mutations.editing import Edit
from tests.mutations.mutation import Mutation

SHARD_MUTATIONS = (
    Mutation(
        "a change of the number leaves the former epochs",
        None,
        (Edit("change_shards._raised", "(shard.epoch for shard in found.former)", "()"),),
        hostile="set_shards",
        seeds=50,
    ),
    Mutation(
        "no host stands for election for the shards that it should lead",
        None,
        (Edit("AllShards._share_out", "min(order[shard].index(self._me), MAX_TURNS) * PATIENCE_US", "10 ** 12"),),
        hostile="set_shards",
        seeds=5,
    ),
    Mutation(
        "an election does not check the number of shards",
        None,
        (Edit("CoordinatorElector._run", "*self._shard.guards", ""),),
        hostile="set_shards",
        seeds=200,
    ),
    Mutation(
        "a shard's leader also serves other groups",
        None,
        (Edit("Shard.has", "shard_of(group, self.count) == self.number", "self.number == 0"),),
        hostile="set_shards",
        seeds=5,
    ),
    Mutation(
        "a host does not make the deleted folder of hosts again",
        None,
        (Edit("AllShards._registered", "reply.refusal is Refusal.NO_NODE", "False"),),
        hostile="set_shards foreign_hosts",
        seeds=30,
    ),
    Mutation(
        "a damaged number is mended with the only shard as the former one",
        None,
        (Edit("change_shards._unknown", "(WHOLE, *map(_one_of_several, below))", "(WHOLE,)"),),
        hostile="set_shards foreign_number",
        seeds=100,
    ),
    Mutation(
        "a leadership after the number was written again makes the ids of the one before",
        None,
        (Edit("Coordinator.coordinator_startup", "self._numbers.leadership += 1", "pass"),),
        hostile="set_shards foreign_number",
        seeds=200,
    ),
    Mutation(
        "a reply that comes with a new number of shards goes to a coordinator of the former number",
        None,
        (
            Edit(
                "AllShards._replied",
                "for one in [one for one in replies if one[0] not in self._callers]:"
                " self.scheduler.answer_all(one)"
                " of_machines: dict[Coordinator, list[calls.Replied | calls.RepliedInRow]] = {}"
                " for one in replies: machine = {self._callers.pop(call_id, None) for call_id in one.ids}.pop()"
                " if machine is not None:",
                """of_machines = {}
    callers = [{self._callers.pop(call_id, None) for call_id in one.ids}.pop() for one in replies]
    for one, machine in zip(replies, callers):
        if machine is None:
            self.scheduler.answer_all(one)
        else:""",
            ),
        ),
        hostile="set_shards",
        seeds=60,
    ),
)
