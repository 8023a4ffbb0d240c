"""Deliberate bugs that the simulation has to find; each rule of `docs/reference/protocol.md` is off at least once.

A mutation names its rule, and states either the number of seeds that find it, or why nothing breaks without the rule.
"""

from __future__ import annotations

from tests.mutations.editing import Edit
from tests.mutations.hostile_bugs import HOSTILE_MUTATIONS
from tests.mutations.mutation import Mutation
from tests.mutations.operator_bugs import OPERATOR_MUTATIONS
from tests.mutations.shard_bugs import SHARD_MUTATIONS

READ_COMMANDS = "self._commands_incarnations_and_statics, self._command_contents"
READ_OWNERS = "self._names_of_owners, self._names_of_ids, self._registrations, self._owners"
LIST_IDS_EARLY = (
    'lambda: [Reads(ListChildren, paths.ids(self._group), lambda reply: setattr(self, "_early", set(_names(reply))))]'
)
SYNC_ELECTION = "self._scheduler.ask(Sync(paths.CONSUMERS), self._synced, expected=ANY)"
DELETE_COMMAND = 'Delete(f"{self._channel}/{write.ack.command}")'
OWNED_ONLY = "partitions={tp: 0 for tp in member.held() if member.owners and tp in member.owners.partitions}"

MUTATIONS = (
    Mutation(
        "records are read before the commands",
        1,
        (
            Edit(
                "GroupReader.stages",
                f"{READ_COMMANDS}, {READ_OWNERS}",
                f"{READ_OWNERS}, {READ_COMMANDS}",
            ),
        ),
        seeds=2000,
    ),
    Mutation(
        "eviction records are not read",
        1,
        (Edit("GroupReader.stages", ", self._evicted_names, self._eviction_records", ""),),
    ),
    Mutation(
        "dead channels are found with ids listed before the channels",
        1,
        (
            Edit("GroupReader.stages", "self._node_names", f"{LIST_IDS_EARLY}, self._node_names"),
            Edit("GroupReader.dead_channels", "- self.view.members.keys()", "- self._early"),
        ),
        seeds=10,
    ),
    Mutation(
        "an unreadable record holds nothing",
        2,
        (Edit("view.Member.held", "known if self.is_readable else self.given or known", "known"),),
        hostile="foreign_node",
    ),
    Mutation("a pending start is not counted", 3, (Edit("view.Member.held", "held.update(", "dict("),)),
    Mutation(
        "nothing is read again after a broken connection",
        3,
        (Edit("Coordinator._connected", "self.leadership is not None", "False"),),
    ),
    Mutation(
        "a coordinator leads with a node of another election",
        4,
        (Edit("CoordinatorElector._coordinator_read", "reply.stat.created_zxid != stat.modified_zxid", "False"),),
        seeds=10,
    ),
    Mutation(
        "a coordinator leads with a node of another session",
        4,
        (Edit("CoordinatorElector._coordinator_read", "reply.stat.ephemeral_owner != self.session_id", "False"),),
    ),
    Mutation(
        "a coordinator leads on in a new session",
        4,
        (
            Edit("CoordinatorElector.session_lost", "", "return"),
            Edit("CoordinatorElector.elect", "", "if self.state is ElectionState.LEADING: return"),
        ),
        seeds=60,
    ),
    Mutation("no epoch check", 4, (Edit("Scheduler.begin_leadership", "epoch_version)", "-1)"),), seeds=30),
    Mutation(
        "every refusal deposes the leader",
        5,
        (Edit("Scheduler._is_deposed", "reply.index == 0", "reply.index is not None"),),
        seeds=30,
    ),
    Mutation(
        "a dead member delays the others",
        5,
        (Edit("Moving._not_sent", "self._note_without_channel(concerned)", "pass"),),
        seeds=10,
    ),
    Mutation(
        "commands do not check the settings", 6, (Edit("Moving._send", "view.settings_version)]", "-1)]"),), seeds=300
    ),
    Mutation("the generation is not stored", 6, (Edit("Moving._send", "if not plan.stored:", "if False:"),)),
    Mutation(
        "an ack deletes the command before it writes the record",
        7,
        (
            Edit(
                "WriteLane._send",
                f"ack = [SetContent(self._owners, content, self.version), {DELETE_COMMAND}]",
                f"self._effects.request(Multi(({DELETE_COMMAND},)), bool); "
                "ack = [SetContent(self._owners, content, self.version)]",
            ),
        ),
    ),
    Mutation("a stop's ack carries no offsets", 7, (Edit("Stop.begin_ack", "self.finished()", "{}"),)),
    Mutation(
        "returned records count as finished",
        7,
        (Edit("Commits.handle_progress", "position.finished", "position.returned"),),
    ),
    Mutation(
        "an ack without an answer counts as cancelled",
        8,
        (Edit("WriteLane._resume", "self._verify(write)", "self._end(Outcome.CANCELLED)"),),
        seeds=30,
    ),
    Mutation(
        "an ack without an answer counts as written",
        8,
        (Edit("WriteLane._resume", "self._verify(write)", "self._acked(write, write.ack, self.version + 1)"),),
        seeds=300,
    ),
    Mutation(
        "commits do not check ownership",
        9,
        (
            Edit(
                "WriteLane._send",
                "fence: list[Operation] = [Check(self._owners, self.version)]",
                "fence: list[Operation] = []",
            ),
        ),
        seeds=500,
    ),
    Mutation(
        "a late start counts as cancelled although it was acknowledged",
        10,
        (
            Edit(
                "Moving._cancelled",
                "if isinstance(reply, Done):",
                "if isinstance(reply, Done) or reply.refusal is Refusal.NO_NODE:",
            ),
        ),
        seeds=500,
    ),
    Mutation(
        "a retry sends a second command",
        10,
        (
            Edit(
                "Moving._answer_is_late",
                "self._scheduler.write([Delete(late.node)], self._cancelled, consumer, late, expected=ANY)",
                "self.drop_cancelled(consumer, late)",
            ),
        ),
    ),
    Mutation(
        "records are returned without a lease",
        11,
        (Edit("SharedState.take", "self.now_ms() >= self._emit_until_ms", "False"),),
    ),
    Mutation(
        "the lease runs from the answer",
        11,
        (
            Edit(
                "registered_member.Member._renewed",
                "renew(sent_ms",
                "renew(self._effects.now_ms",
            ),
        ),
    ),
    Mutation(
        "the lease is renewed by a read",
        11,
        (
            Edit(
                "registered_member.Member._renew",
                "self._renewal, self",
                "Get(self._renewal.operations[0].path), self",
            ),
            Edit("registered_member.Member._renewed", "isinstance(reply, Done)", "isinstance(reply, Content)"),
        ),
    ),
    Mutation(
        "the lease is as long as the session",
        11,
        (Edit("Emission.renew", "sent_ms + lease_ms", "sent_ms + lease_ms * 3 // 2"),),
    ),
    Mutation(
        "a late stop is waited for endlessly",
        12,
        (Edit("Moving._answer_is_late", "self._report", "(lambda *_: None)"),),
        seeds=500,
    ),
    Mutation(
        "a consumer that has acknowledged a late stop is evicted",
        12,
        (Edit("Departures._has_answered", "late.node is not None and ___", "False"),),
        seeds=300,
    ),
    Mutation(
        "the lease of an evicted member is not waited for",
        12,
        (Edit("Leases._await_lease", "mono_us + ___", "mono_us"),),
    ),
    Mutation(
        "an eviction record lacks pending starts",
        12,
        (Edit("Departures._eviction_record", "partitions=___", OWNED_ONLY),),
        seeds=60,
    ),
    Mutation(
        "records carry no generation",
        13,
        (
            Edit(
                "Start.handle_outcome",
                "StartFetching(dict(self.offsets), self.command.generation, self._threads(),",
                "StartFetching(dict(self.offsets), 0 if self.command.generation > 3 else 9, self._threads(),",
            ),
        ),
    ),
    Mutation(
        "channel and registration are two transactions",
        14,
        (
            Edit(
                "Join._register",
                "operations = (",
                "self.effects.request(Multi((Create(paths.channel(self.group, self.consumer)),)), bool); "
                "operations = (); _channel = (",
            ),
        ),
    ),
    Mutation("a recreated topic is not noticed", 15, (Edit("OffsetMarks.is_stale", "", "return False"),), seeds=10),
    Mutation(
        "offsets are deleted without a copy",
        22,
        (Edit("TopicReset._operations", "if offsets:", "if False:"),),
        seeds=10,
    ),
    Mutation(
        "offsets are deleted while a member holds the topic",
        15,
        (
            Edit("TopicReset.begin_free", "and topic not in held", ""),
            Edit("TopicReset._is_over", "and topic not in self._view.held_topics()", ""),
        ),
        seeds=30,
    ),
    Mutation(
        "a frozen group moves",
        16,
        (Edit("Planning.admissible", "not self._keeps_held", "self.unapproved_moves is None"),),
        seeds=30,
    ),
    Mutation("a drained member goes on as before", 28, (Edit("Drain.settled", "", "return iter(())"),), seeds=30),
    Mutation(
        "a drained member does not notice that others have come or gone",
        28,
        (Edit("Drain._count", "self._is_touched = self._is_touched or is_first or was_last", "pass"),),
        seeds=100,
    ),
    Mutation(
        "the last other reader of a topic leaves unnoticed",
        28,
        (Edit("Drain._count", "self._readers.remove(before)", "None"),),
        seeds=100,
    ),
    Mutation(
        "a plan that an operator has to approve is carried out",
        29,
        (Edit("GroupSettings.allows", "", "return True"),),
        seeds=60,
    ),
    Mutation(
        "while a plan waits for approval, nothing without an owner is started",
        29,
        (
            Edit(
                "Planning.admissible",
                "all((one in freed for one in view.holders(tp)))",
                "view.settings.frozen and not view.holders(tp)",
            ),
        ),
        seeds=60,
    ),
    Mutation(
        "static members are waited for endlessly", 17, (Edit("StaticMembers._grace_over", "", "return"),), seeds=100
    ),
    Mutation(
        "the grace that a static member registered is ignored",
        17,
        (Edit("StaticMembers._wait_for", "", "return"),),
        seeds=500,
    ),
    Mutation(
        "of two members with one instance id, none is fenced",
        17,
        (Edit("static_members.fenced", "", "return {}"),),
        seeds=300,
    ),
    Mutation(
        "no check precedes a commit to Kafka",
        9,
        (
            Edit(
                "WriteLane._go_on",
                "self._check(write)",
                "self._sent_ms = self._effects.now_ms; self._commit_to_kafka(write)",
            ),
        ),
        seeds=500,
    ),
    Mutation(
        "a commit to Kafka is not limited by the lease",
        9,
        (Edit("WriteLane._commit_to_kafka", "min(self._sent_ms + self.lease_ms, ", "max(self._sent_ms + 60_000, "),),
        seeds=100,
    ),
    Mutation(
        "an offset in Kafka of a deleted topic counts",
        15,
        (Edit("KafkaBook._is_of_another_topic", "", "return False"),),
        seeds=50,
    ),
    Mutation(
        "in both stores the lower offset wins", None, (Edit("Start._read", "max(offset, ", "min(offset, "),), seeds=50
    ),
    Mutation(
        "an offset that Kafka does not say counts as missing",
        None,
        (Edit("Start._note_found", "if one is None", "if False"),),
        seeds=10,
    ),
    Mutation(
        "starts ignore a pause", 18, (Edit("GroupView.may_start", "self.settings.starts_paused or", ""),), seeds=10
    ),
    Mutation("channels of dead consumers stay", 19, (Edit("Departures.sweep", "", "return"),)),
    Mutation("eviction records stay", 19, (Edit("Leases._lease_over", "", "return"),)),
    Mutation(
        "a new leader adopts no commands",
        20,
        (Edit("GroupReader._adopt_commands", "_not_applied(self.channels.get(member.consumer, []), member)", "[]"),),
    ),
    Mutation(
        "adopted commands may be applied",
        20,
        (Edit("reader._not_applied", "", "return sorted(pending, key=lambda command: command.node)"),),
        seeds=2_000,
    ),
    Mutation(
        "a session of a closed client counts as the next one",
        None,
        (Edit("StateMachine._session_changed", "self.state is State.OUT or self.open_at_ms is not None", "False"),),
        hostile="starve_agent",
        seeds=40,
    ),
    *HOSTILE_MUTATIONS,
    *SHARD_MUTATIONS,
    *OPERATOR_MUTATIONS,
    # Of the code --------------------------------------------------------------------------------------------------
    Mutation(
        "the legacy rule: a change during a rebalance is lost",
        None,
        (
            Edit(
                "Group.request",
                "",
                "if self.state in {GroupState.PLANNING, GroupState.MOVING, GroupState.BACKING_OFF}: return",
            ),
        ),
        seeds=10,
    ),
    Mutation(
        "a start does not wait for the stop",
        None,
        (Edit("GroupView.may_start", "self.is_free_for(consumer, partition)", "True"),),
    ),
    Mutation(
        "a start fetches records before its ack",
        None,
        (
            Edit(
                "Start.begin_ack",
                "self.stage = Stage.WRITING",
                "self.stage = Stage.WRITING; "
                "self.effects.add(StartFetching(dict(self.offsets), self.command.generation, self._threads()))",
            ),
        ),
    ),
    Mutation("an eager group has no barrier", None, (Edit("plan.next_step", "if plan.barrier_is_up:", "if False:"),)),
    Mutation("the list of consumers is watched once", None, (Edit("Membership.list_ids", ", watch=True", ""),)),
    Mutation(
        "records of owners are watched once", None, (Edit("Membership.read_owners", ", watch=True", ""),), seeds=10
    ),
    Mutation("topics are watched once", None, (Edit("TopicListener._read", ", watch=True", ""),), seeds=100),
    Mutation("settings are watched once", None, (Edit("Group.read_settings", ", watch=True", ""),), seeds=300),
    Mutation(
        "records of an older assignment are buffered",
        None,
        (Edit("Fetcher._put", "partition not in self._changes and (not self._stopping)", "True"),),
        seeds=1500,
    ),
    Mutation(
        "a watch is missed while a group is loaded",
        None,
        (Edit("Group.watched", "self._missed.add(path)", "pass"),),
        seeds=100,
    ),
    Mutation(
        "a consumer that does not poll stays",
        None,
        (Edit("registered_member.Member.handle_application_seen", 'self._depart("lost", ask=False)', "pass"),),
        seeds=10,
    ),
    Mutation(
        "commands are handled twice",
        None,
        (Edit("channel.Channel.listed", "and _sequence(name) > self.last_sequence", ""),),
        seeds=100,
        redundant="an acknowledgement deletes its command, so there is nothing to read the second time",
    ),
    Mutation(
        "no sync before an election",
        3,
        (Edit("CoordinatorElector.elect", SYNC_ELECTION, "self._synced(Done())"),),
        seeds=1000,
    ),
    Mutation(
        "no sync before an ack is looked up",
        None,
        (Edit("WriteLane._verify", "self._request(Sync(self._owners), self._synced)", "pass"),),
        seeds=100,
        redundant="after a reconnect, the lease is renewed first; that transaction has the same effect",
    ),
)
