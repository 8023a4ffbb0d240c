"""Deliberate bugs that have an effect only in a hostile world."""

from __future__ import annotations

from tests.mutations.editing import Edit
from tests.mutations.mutation import Mutation

HOSTILE_MUTATIONS = (
    Mutation(
        "claims are believed",
        21,
        (
            Edit(
                "view.Member.read_owners",
                "given is None or given is owned",
                "True",
            ),
        ),
        hostile="forge_claim",
        seeds=5,
    ),
    Mutation(
        "a new leader believes claims",
        21,
        (Edit("GroupReader._given_to", "if self._is_recorded() else None", "if False else None"),),
        hostile="forge_claim",
        seeds=20,
    ),
    Mutation(
        "a false claim is waited for",
        21,
        (
            Edit(
                "Departures._eviction_record",
                "partitions=___",
                "partitions=dict.fromkeys(member.false_claims, 0)",
            ),
        ),
        hostile="forge_claim",
        seeds=5,
    ),
    Mutation(
        "a start does not record what it gives",
        21,
        (
            Edit(
                "Batch._records",
                "[self._given_record(consumer, wanted)] if isinstance(wanted, StartFetcher) else []",
                "[]",
            ),
        ),
        hostile="forge_claim",
        seeds=5,
    ),
    Mutation(
        "a start forgets what was given before",
        21,
        (Edit("Batch._given_record", "*(self._view.members[consumer].given or ()), ", ""),),
        hostile="forge_claim",
        seeds=5,
    ),
    Mutation(
        "a missing record frees the partitions of its member",
        21,
        (Edit("Membership._owners_read", "if member.registered:", "if False:"),),
        hostile="delete_owner",
        seeds=20,
    ),
    Mutation(
        "a new leader considers a member without a record dead",
        21,
        (Edit("GroupReader._owners_read", "elif self.view.members[consumer].registered:", "elif False:"),),
        hostile="delete_owner",
        seeds=100,
    ),
    Mutation(
        "a member without a session is like any other",
        27,
        (Edit("view.Member._implied_state", "or self.is_sessionless", ""),),
        hostile="restore_member",
        seeds=20,
    ),
    Mutation(
        "a topic that gets an id counts as another one",
        None,
        (Edit("OffsetMarks.is_stale", "not is_same_topic(known.incarnation, stored)", "known.incarnation != stored"),),
        seeds=20,
        hostile="give_topic_id",
    ),
    Mutation(
        "a mark alone says which topic the offsets belong to",
        15,
        (Edit("OffsetMarks.is_stale", "f\"{mark} {recorded or ''}\"", "mark"),),
        seeds=60,
        hostile="garble_mark give_topic_id recreate_topics",
    ),
    Mutation(
        "a refused call is repeated at once",
        None,
        (Edit("scheduler.pause_us", "", "return 0"),),
        seeds=20,
        hostile="refuse_group",
    ),
    Mutation(
        "an unreadable node counts as absent",
        None,
        (Edit("Scheduler.answer", "reply.refusal in awaited.expected", "True"),),
        seeds=20,
        hostile="deny_group",
    ),
    Mutation(
        "an unreadable topic blocks all groups",
        None,
        (Edit("TopicListener._topic_read", "self._read_later(name)", "return"),),
        seeds=20,
        hostile="deny_topic",
    ),
    Mutation(
        "for a new leader, an unreadable topic counts as absent",
        None,
        (Edit("TopicListener._topic_read", "get(name, UNREAD)", "get(name)"),),
        seeds=250,
        hostile="deny_topic",
    ),
    Mutation(
        "for a new leader, an unreadable topic counts as another one",
        None,
        (Edit("OffsetMarks.is_stale", "known is not UNREAD and ", ""),),
        seeds=60,
        hostile="deny_topic",
    ),
    Mutation(
        "a refused registration is tried again at once",
        None,
        (Edit("StateMachine._begin_joining", "if now_ms < opens_ms:", "if False:"),),
        seeds=20,
        hostile="deny_agents",
    ),
    Mutation(
        "a hanging strategy blocks other groups",
        None,
        (Edit("Coordinator.request_handler", "if now_us < since_us + PLAN_PATIENCE_US", ""),),
        seeds=60,
        hostile="hang_strategy",
    ),
    Mutation(
        "a group deleted in use does not wait for its former members",
        26,
        (Edit("FormerLives.wait_us", "return max(0, self._until_us[group] - now_us)", "return 0"),),
        seeds=40,
        hostile="recreate_group",
    ),
    Mutation(
        "a recreated group begins with generation 0",
        26,
        (Edit("Loading._created_again", "reply.stat.created_zxid", "0"),),
        seeds=40,
        hostile="recreate_group",
    ),
    Mutation(
        "a deleted root is not waited for",
        None,
        (Edit("TopicListener._list", "expected=OF_A_ROOT", "expected=ANY"),),
        seeds=100,
        hostile="recreate_topics",
    ),
    Mutation(
        "an unreadable record of a static member is created again",
        None,
        (Edit("static_members.stores", "or instance in view.unreadable_statics", ""),),
        seeds=40,
        hostile="garble_static",
    ),
    Mutation(
        "an unreadable generation starts again",
        None,
        (
            Edit("GroupReader._generation_read", "reply.stat.modified_zxid", "0"),
            Edit("GroupReader._note_generation", "", "return"),
            Edit("GroupReader._mark_read", "decimal(reply.content, cluster_nodes.MAX_COUNTER) or 0", "0"),
        ),
        seeds=40,
        hostile="garble_generation",
    ),
    Mutation(
        "a pause that nobody renews lasts forever",
        25,
        (Edit("Expiry._end", "if self._mark is not None and self._what.mark(known) == self._mark:", "if False:"),),
        hostile="abandon_reset",
        seeds=10,
    ),
    Mutation(
        "a read that was refused while a group was loaded is not repeated",
        24,
        (Edit("Membership.ask_again", "self.read_registration(member.consumer)", "pass"),),
        hostile="refuse_group",
        seeds=300,
    ),
    # Accounts, which are checked in hostile runs only.
    Mutation(
        "a consumer that holds nothing any more is still counted",
        None,
        (Edit("GroupView._reindex", "self._held.pop(consumer, None)", "pass"),),
        hostile="pair",
        seeds=5,
    ),
    Mutation(
        "the interest in a topic is never counted down",
        None,
        (Edit("Subscriptions.remove", "_count_down(self.consumer_groups_per_topic, topic, group)", "pass"),),
        hostile="pair",
        seeds=5,
    ),
)
