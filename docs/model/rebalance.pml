/*
 * The rebalancing protocol: what coordinators and consumers write into ZooKeeper, and why a partition has one owner.
 *
 * Two coordinators, two consumers, two partitions, and FAULTS faults of any kind at any moment. Every transaction is one
 * atomic step; every read is a step of its own, between which everybody else moves. Rule numbers are those of
 * docs/protocol.md. Each rule can be switched off by a macro (README.md lists them), and then the search finds the harm.
 *
 * Two reductions, both exact, since names and ids are only ever compared: a new consumer name, or a new command id, is
 * any that nobody refers to any more. As every acknowledgement brings a new id, the id of the last command applied also
 * stands for the version of `owners/C`.
 *
 * Time is abstract: a consumer's lease is valid or over. A lease is shorter than a session and counted from earlier, so
 * a session does not expire while its lease is valid (rule 11); who waits for one whole lease knows that a lease that
 * was valid when the wait began is over (rule 12). The time limit of a command is reached at any moment, as a fault.
 * A watch is a step that can be taken as soon as what is known differs from what stands in ZooKeeper.
 *
 * With FALSE_CLAIMS a consumer may also write into its own record what it was not given (rule 21), and emit it. Nobody can
 * prevent that, so such a partition does not count as owned or emitted, until a leader believes the claim.
 *
 * With SHARDS there are two shards of groups, each with a leader's node and an epoch of its own, and an operator may change
 * their number: then the group belongs to the other shard. Both numbers have these two shards, as 2 and 3 shards have.
 * The group is all that is modelled of its shard. Of the other one, only who leads it: it has no part in this group.
 */

#ifndef FAULTS
#define FAULTS 2
#endif

#define NAMES 3		/* two consumers, and one name whose nodes are still being removed */
#define NOBODY 3
#define EVERYTHING 3	/* sets of partitions are bit masks, printed as {1}, {2} and, for both, {3} */

#define NOTHING 0	/* options of a command */
#define START 1
#define STOP 2

/* What ZooKeeper holds for one consumer name. */
typedef Nodes {
	bit ids;			/* ids/C, ephemeral */
	bit owners;			/* owners/C, ephemeral: */
	unsigned held : 2;		/*   the partitions in it, */
	unsigned applied : 3;		/*   and the id of the last command applied */
	bit channel;			/* channel/C, persistent: */
	unsigned option : 2;		/*   the one command in it */
	unsigned parts : 2;
	unsigned id : 3;
	bit evicted;			/* evicted/C, persistent: */
	unsigned tombstone : 2;		/*   the partitions in it */
#ifdef FALSE_CLAIMS
	unsigned given : 2;		/* given/C, persistent, written only by leaders */
#endif
#ifdef RETRY_CREATES_SECOND
	bit twice;			/* the same command stands in the channel again */
#endif
};
Nodes zk[NAMES];
#ifdef SHARDS
byte leaders[2];			/* of each shard, the leader's node: whose it is, 0 if it is not there */
bit versions[4];			/* of coordinator c in shard s, at 2c + s: whether the version that it knows is current */
bit number;				/* /consumers/shards: the shard that the group belongs to */
bit knows[2];				/* what each coordinator has read there last */
#define LEADER leaders[knows[me]]
#define CURRENT_OF(c, s) versions[2 * (c) + (s)]
#define CURRENT_EPOCH CURRENT_OF(me, knows[me])
#else
byte leader;				/* /consumers/coordinator: whose it is, 0 if it is not there */
bit current[2];				/* whether the version that a leader knows is still that of coordinator_epoch */
#define LEADER leader
#define CURRENT_EPOCH current[me]
#endif

/* What a consumer process does under a name; not stored anywhere. */
byte emit[NAMES];			/* partitions of which it returns records, while its lease is valid */
bit lease[NAMES];
#ifdef FALSE_CLAIMS
byte claimed[NAMES];			/* partitions of owners/C that it wrote there itself, as long as no leader believes it */
#define UNBELIEVED(n) claimed[n]
#define RECORDED(n) zk[n].given
#else
#define UNBELIEVED(n) 0
#define RECORDED(n) 0
#endif

/* What a coordinator knows of one consumer name. */
typedef View {
	bit known;			/* a member, */
	bit registered;			/* with a registration */
	unsigned held : 2;		/* what owners/C said when it was last read */
	unsigned applied : 3;
	unsigned option : 2;		/* the pending command */
	unsigned parts : 2;
	unsigned id : 3;
	unsigned target : 2;		/* of the plan */
	bit tomb;			/* evicted/C */
	unsigned tombstone : 2;
	bit old_lease;			/* its lease was valid when the wait began, and was not renewed since */
	bit listed;			/* while loading: its channel was listed */
#ifdef EAGER
	bit to_stop;			/* the plan has a stop to send */
	bit stopping;			/* the stop is sent */
#endif
};
typedef Memory { View view[NAMES] };
Memory memory[2];

/* What a consumer process has in hand. */
typedef Hand {
	unsigned name : 2;
	unsigned option : 2;
	unsigned parts : 2;
	unsigned id : 3;
	bit unknown;			/* the reply to its ack was lost */
	bit half;			/* one of two writes is done (only when a rule is switched off) */
};
Hand hand[2];

byte faults = FAULTS;

/* Any fault at any moment; with more of them, one side at a time. A time limit is reached in any case. */
#ifdef NO_COORDINATOR_FAULTS
#define COORDINATOR_FAULT false
#else
#define COORDINATOR_FAULT faults > 0
#endif
#ifdef NO_CONSUMER_FAULTS
#define CONSUMER_FAULT false
#else
#define CONSUMER_FAULT faults > 0
#endif

#define ANY(condition) (condition(0) || condition(1) || condition(2))
#define PICK(condition) if :: condition(0) -> n = 0 :: condition(1) -> n = 1 :: condition(2) -> n = 2 fi
#define EACH for (n : 0 .. 2)

/* ---- What is promised ---- */

#define OWNED(n) (zk[n].owners * zk[n].held & ~UNBELIEVED(n))
#ifdef EMIT_WITHOUT_LEASE		/* rule 11 */
#define EMITTED(n) (emit[n] & ~UNBELIEVED(n))
#else
#define EMITTED(n) (emit[n] * lease[n] & ~UNBELIEVED(n))
#endif
#define TWICE(what) ((what(0) & what(1)) | (what(0) & what(2)) | (what(1) & what(2)))
#define ONCE(what) (what(0) | what(1) | what(2))
#define SERVED (ONCE(OWNED) == EVERYTHING && ONCE(EMITTED) == EVERYTHING)

inline check()
{
	if
	:: TWICE(OWNED) -> printf("=> two consumers own {%d}\n", TWICE(OWNED)); assert(false)
	:: else
	fi;
	if
	:: TWICE(EMITTED) -> printf("=> two consumers emit {%d}\n", TWICE(EMITTED)); assert(false)
	:: else
	fi
}

/* ---- Names and ids that nobody refers to ---- */

#define REFERS(c, n) (memory[c].view[n].known || memory[c].view[n].listed || memory[c].view[n].tomb)
#define STANDS(n) (zk[n].ids || zk[n].owners || zk[n].channel || zk[n].evicted || RECORDED(n))
#define UNUSED(n) (!STANDS(n) && hand[0].name != n && hand[1].name != n && !REFERS(0, n) && !REFERS(1, n))

#define IN_HAND(k, i) (hand[k].name == n && hand[k].id == i)
#define REMEMBERED(c, i) (memory[c].view[n].applied == i || memory[c].view[n].id == i)
#define WRITTEN(i) (zk[n].applied == i || zk[n].id == i)
#define USED(i) (WRITTEN(i) || IN_HAND(0, i) || IN_HAND(1, i) || REMEMBERED(0, i) || REMEMBERED(1, i))
#define SWAPPED(i) (i == MINE.id -> 1 : (i == 1 -> MINE.id : i))
/* At most six are in use at a time. */
#define NEW_ID (!USED(1) -> 1 : (!USED(2) -> 2 : (!USED(3) -> 3 : NEW_HIGH_ID)))
#define NEW_HIGH_ID (!USED(4) -> 4 : (!USED(5) -> 5 : (!USED(6) -> 6 : 7)))

/* ---- Coordinator: what it knows ---- */

#define IT(n) memory[me].view[n]
#define SETTLED(n) (IT(n).known && IT(n).option == NOTHING && zk[n].channel && ROOM(n))	/* rule 5: not who is gone */
#if defined(NO_EPOCH_CHECK) || defined(NO_ELECTION_MULTI) || defined(NO_ADOPTION) || defined(LOAD_BEFORE_EPOCH)
#define ROOM(n) (zk[n].option == NOTHING)	/* look for worse than two commands in a channel */
#elif defined(CHANGE_KEEPS_EPOCHS) || defined(ELECT_WITHOUT_NUMBER) || defined(KEEP_GROUP) || defined(FENCE_OF_ANY_SHARD)
#define ROOM(n) (zk[n].option == NOTHING)
#elif defined(NO_SYNC) || defined(FORGET_UNKNOWN_START) || defined(RETRY_CREATES_SECOND)
#define ROOM(n) (zk[n].option == NOTHING)
#else
#define ROOM(n) true
#endif

/* Rule 4: every write of a leader checks the epoch. So a leader that is superseded and does not know it can only find
 * out: its writes fail, and what it would read first does not matter. */
#if defined(NO_EPOCH_CHECK)
#define FENCE true
#elif defined(FENCE_OF_ANY_SHARD)	/* one fence for all shards that a coordinator leads */
#define FENCE (CURRENT_OF(me, 0) || CURRENT_OF(me, 1))
#else
#define FENCE CURRENT_EPOCH
#endif

/* Held: in owners/C, in a start-fetcher, or in evicted/C. */
#define EXPECTED(n) (IT(n).option == STOP -> IT(n).held & ~IT(n).parts : IT(n).held | IT(n).parts)
#ifdef START_BEFORE_STOP_ACK
#define HOLDS(n) (EXPECTED(n) | IT(n).tombstone)
#else
#define HOLDS(n) (IT(n).held | (IT(n).option == START -> IT(n).parts : 0) | IT(n).tombstone)
#endif
#define OTHERS_HOLD(n) ((n == 0 -> 0 : HOLDS(0)) | (n == 1 -> 0 : HOLDS(1)) | (n == 2 -> 0 : HOLDS(2)))
#define READY(n) (IT(n).target & ~IT(n).held & ~OTHERS_HOLD(n))

#ifdef EAGER
#define DIFFERS(n) (IT(n).known && EXPECTED(n) != IT(n).target)
#define TO_BE_STOPPED(n) (ANY(DIFFERS) && HOLDS(n))
#define WAITS(n) (IT(n).to_stop || IT(n).stopping)
#define LEAVING(n) (IT(n).to_stop -> EVERYTHING : 0)
#define BARRIER (WAITS(0) || WAITS(1) || WAITS(2))
#define START_DUE(n) (SETTLED(n) && !BARRIER && READY(n))
#else
#define LEAVING(n) (IT(n).held & ~IT(n).target)
#define START_DUE(n) (SETTLED(n) && !LEAVING(n) && READY(n))
#endif
#define STOP_DUE(n) (SETTLED(n) && LEAVING(n))

#define IDS_CHANGED(n) (zk[n].ids != (IT(n).known && IT(n).registered))
#define OWNERS_CHANGED(n) (IT(n).known && (!zk[n].owners || zk[n].applied != IT(n).applied))
#ifdef EVICT_AT_ANY_VERSION		/* rule 12 */
#define UNCHANGED(n) (IT(n).known && zk[n].owners)
#else
#define UNCHANGED(n) (IT(n).known && zk[n].owners && zk[n].applied == IT(n).applied)
#endif
#define STRUCK_OFF(n) (UNCHANGED(n) && !IT(n).registered)
#define LATE_STOP(n) (UNCHANGED(n) && IT(n).option == STOP)
#define LATE_START(n) (IT(n).known && IT(n).option == START)
#ifdef NO_LEASE_WAIT			/* rule 12 */
#define LEASE_OVER(n) (IT(n).tomb)
#else
#define LEASE_OVER(n) (IT(n).tomb && !(IT(n).old_lease && lease[n]))
#endif
#define BUSY(n) (IT(n).option != NOTHING)
#define OVERLOOKED(n) (zk[n].channel && !zk[n].ids && !REFERS(me, n))

/* Rule 21: what a consumer was given is what it held when it was last read, and what is being started. A leader that
 * reads the record for the first time takes it from given/C. Only leaders write that, each as long as it leads, so it
 * does not matter at which moment of the reading it is read. */
#define GIVEN(n) (IT(n).held | (IT(n).option == START -> IT(n).parts : 0))
#ifdef FALSE_CLAIMS
#define TRUE_CLAIMS(n) (zk[n].held & GIVEN(n))
#ifdef FAILOVER_BELIEVES_CLAIMS
#define TRUE_CLAIMS_FOR_NEW_LEADER(n) zk[n].held
#else
#define TRUE_CLAIMS_FOR_NEW_LEADER(n) (zk[n].held & zk[n].given)
#endif
#define CLAIMS_FALSELY(n) (IT(n).known && zk[n].owners && (zk[n].held & ~GIVEN(n)))
#define RECORD_DIFFERS(n) (IT(n).known && zk[n].given != GIVEN(n))
#else
#define TRUE_CLAIMS(n) zk[n].held
#define TRUE_CLAIMS_FOR_NEW_LEADER(n) zk[n].held
#endif

#ifdef FALSE_CLAIMS
inline believe() { claimed[n] = claimed[n] & ~IT(n).held }
/* owners/C is gone: what it claimed matters as long as it emits that. */
inline forget_claims() { claimed[n] = claimed[n] & emit[n] }
inline shrink_given() { zk[n].given = GIVEN(n) }	/* in truth up to a second later */
inline delete_given() { zk[n].given = 0 }
#else
#define believe()
#define forget_claims()
#define shrink_given()
#define delete_given()
#endif

inline forget_command()
{
	IT(n).option = NOTHING; IT(n).parts = 0; IT(n).id = 0
}

inline forget_member()
{
	forget_command();
	IT(n).known = 0; IT(n).registered = 0; IT(n).held = 0; IT(n).applied = 0; IT(n).target = 0;
#ifdef EAGER
	IT(n).to_stop = 0; IT(n).stopping = 0;
#endif
}

inline forget_everything()
{
	d_step {
		EACH {
			forget_member();
			IT(n).tomb = 0; IT(n).tombstone = 0; IT(n).old_lease = 0; IT(n).listed = 0
		}
		n = 0
	}
}

/* Range: the first name gets the first partition, the second one the other; one alone gets both. */
#define MEMBER(n) (IT(n).known && IT(n).registered)
inline make_plan()
{
	IT(0).target = (MEMBER(0) -> (MEMBER(1) || MEMBER(2) -> 1 : EVERYTHING) : 0);
	IT(1).target = (MEMBER(1) -> (MEMBER(0) -> 2 : (MEMBER(2) -> 1 : EVERYTHING)) : 0);
	IT(2).target = (MEMBER(2) -> (MEMBER(0) && MEMBER(1) -> 0 : (MEMBER(0) || MEMBER(1) -> 2 : EVERYTHING)) : 0);
#ifdef EAGER
	IT(0).to_stop = TO_BE_STOPPED(0); IT(1).to_stop = TO_BE_STOPPED(1); IT(2).to_stop = TO_BE_STOPPED(2);
	IT(0).stopping = 0; IT(1).stopping = 0; IT(2).stopping = 0
#endif
}

#ifdef LOST_CHANGE			/* the legacy compare_and_set(False, True): a change while it rebalances is lost */
inline replan()
{
	if
	:: !ANY(BUSY) -> make_plan()
	:: else
	fi
}
#else
#define replan make_plan
#endif

inline sweep()				/* rule 19: the channel of the dead */
{
#ifndef IDS_TELL_DEATH
	if
	:: zk[n].owners -> printf("=> the channel of a living consumer, %d, is removed\n", n); assert(false)
	:: else
	fi;
#endif
	if
	:: FENCE -> zk[n].channel = 0; zk[n].option = NOTHING; zk[n].parts = 0; zk[n].id = 0; delete_given()
	:: else
	fi
}

inline remove_member()
{
	printf("coordinator %d takes consumer %d for dead\n", me, n);
	forget_member();
	sweep();
	replan()
}

/* ---- Coordinator: reading a group; every step sees ZooKeeper at another moment (rule 1) ----
 * One step reads nodes of one kind of all consumers: what two consumers do to their own nodes meanwhile commutes. */

inline list_channels()
{
	d_step {
		EACH { IT(n).listed = zk[n].channel }
		n = 0;
		printf("coordinator %d lists the channels\n", me)
	}
}

#ifdef NO_SYNC				/* rule 3: the server that it is connected to has not heard of the last command */
#define VISIBLE(n) (behind != n + 1)
#else
#define VISIBLE(n) true
#endif

#define SEEN(n) (IT(n).option == START -> IT(n).parts : 0)

inline read_commands()
{
	d_step {
		EACH {
			if
#ifndef NO_ADOPTION			/* rule 20: what is pending stays pending */
			:: IT(n).listed && VISIBLE(n) ->
				IT(n).option = zk[n].option; IT(n).parts = zk[n].parts; IT(n).id = zk[n].id
#endif
			:: else
			fi
		}
		n = 0;
		printf("coordinator %d reads the commands to consumers 0, 1, 2: start {%d}, {%d}, {%d}\n",
			me, SEEN(0), SEEN(1), SEEN(2))
	}
}

inline list_owners()
{
	d_step { EACH { IT(n).known = zk[n].owners } n = 0 }
}

inline list_ids()
{
	d_step {
		EACH { IT(n).registered = zk[n].ids; IT(n).known = IT(n).known || zk[n].ids }
		n = 0;
		printf("coordinator %d lists the registrations\n", me)
	}
}

inline read_owners()
{
	d_step {
		EACH {
			if
			:: IT(n).known && zk[n].owners ->
				IT(n).held = TRUE_CLAIMS_FOR_NEW_LEADER(n); IT(n).applied = zk[n].applied; believe()
			:: IT(n).known && !zk[n].owners -> IT(n).known = 0; IT(n).registered = 0; IT(n).listed = 1
			:: else
			fi
		}
		n = 0;
		printf("coordinator %d reads what consumers 0, 1, 2 own: {%d}, {%d}, {%d}\n",
			me, IT(0).held, IT(1).held, IT(2).held)
	};
#ifdef FALSE_CLAIMS
	check()
#endif
}

inline read_evicted()			/* and end: what was applied meanwhile is not pending; who is gone is not a member */
{
	d_step {
		EACH {
			IT(n).tomb = zk[n].evicted; IT(n).tombstone = zk[n].tombstone;
			IT(n).old_lease = zk[n].evicted && lease[n];	/* rule 12: one whole lease from now */
#ifdef TOMBSTONE_NOT_ADOPTED		/* rule 12: whoever leads removes it */
			IT(n).tomb = 0;
#endif
			if
			:: IT(n).known && IT(n).id == IT(n).applied -> forget_command()
			:: !IT(n).known && IT(n).listed -> forget_member(); sweep()
			:: else
			fi;
#ifdef FALSE_CLAIMS
			if
			:: FENCE && IT(n).known -> shrink_given()
			:: FENCE && !IT(n).known -> delete_given()
			:: else
			fi;
#endif
			IT(n).listed = 0
		}
		make_plan();
		printf("coordinator %d reads what was evicted, and knows the group\n", me)
	}
}

inline read_everything()		/* rule 20: by one path at any time */
{
	forget_everything();
#if defined(READ_OWNERS_FIRST)		/* rule 1 */
	list_channels(); list_owners(); list_ids(); read_owners(); read_commands();
#elif defined(READ_IDS_FIRST)		/* rule 1 */
	list_owners(); list_ids(); list_channels(); read_commands(); read_owners();
#else
	list_channels(); read_commands(); list_owners(); list_ids(); read_owners();
#endif
	read_evicted()
}

/* ---- Coordinator: its writes. After a lost reply the outcome is unknown, and everything is read again (rule 3) ---- */

#define LOST_REPLY COORDINATOR_FAULT -> faults--; printf("the reply to coordinator %d is lost\n", me)

inline create_command(what)
{
	if
	:: zk[n].option != NOTHING -> printf("=> two commands stand in the channel of consumer %d\n", n); assert(false)
	:: else
	fi;
	d_step {
		zk[n].id = NEW_ID; zk[n].option = what; zk[n].parts = parts;
		IT(n).id = zk[n].id; IT(n).option = what; IT(n).parts = parts;
#if defined(FALSE_CLAIMS) && !defined(RECORD_AFTER_COMMAND)
		zk[n].given = zk[n].given | GIVEN(n);
#endif
		parts = 0
	};
	if
	:: n = 0
	:: LOST_REPLY;
#if defined(FORGET_UNKNOWN_START)	/* rule 3 */
		forget_command(); n = 0
#elif defined(RETRY_CREATES_SECOND)	/* rule 3 */
		zk[n].twice = 1; n = 0
#else
#ifdef NO_SYNC
		behind = n + 1;
#endif
		n = 0; goto load
#endif
	fi
}

#ifdef TOMBSTONE_WITHOUT_STARTS
#define BURIED(n) IT(n).held
#else
#define BURIED(n) HOLDS(n)
#endif

inline evict()				/* rule 12: one transaction; an ack that comes first defeats it */
{
	d_step {
		printf("coordinator %d evicts consumer %d, which holds {%d}\n", me, n, BURIED(n));
		zk[n].evicted = 1; zk[n].tombstone = BURIED(n);
		zk[n].ids = 0; zk[n].owners = 0; zk[n].held = 0; zk[n].applied = 0;
		zk[n].channel = 0; zk[n].option = NOTHING; zk[n].parts = 0; zk[n].id = 0;
#ifdef FALSE_CLAIMS
		delete_given(); forget_claims();
#endif
		forget_member();
		IT(n).tomb = 1; IT(n).tombstone = zk[n].tombstone; IT(n).old_lease = lease[n];
		make_plan()
	};
	if
	:: n = 0
	:: LOST_REPLY; n = 0; goto load
	fi
}

inline cancel()				/* rule 10: the ack or the cancel wins */
{
	if
	:: zk[n].option == START && zk[n].id == IT(n).id ->
		printf("coordinator %d cancels the start of {%d} at consumer %d\n", me, zk[n].parts, n);
		zk[n].option = NOTHING; zk[n].parts = 0; zk[n].id = 0;
		forget_command();
#ifdef FALSE_CLAIMS
		shrink_given();
#endif
		if
		:: n = 0
		:: UNCHANGED(n) -> evict()	/* its last try (rule 12) */
		:: LOST_REPLY; n = 0; goto load
		fi
	:: else ->
		printf("coordinator %d comes too late to cancel the start at consumer %d\n", me, n);
#ifdef CANCEL_UNCONDITIONAL		/* rule 10 */
		forget_command();
#endif
		n = 0			/* the command is gone; owners/C, read again, tells why (rule 2) */
	fi
}

/* ---- Coordinator: what its watches tell ---- */

inline ids_listed()
{
	if
	:: zk[n].ids ->
		IT(n).known = 1; IT(n).registered = 1; IT(n).held = TRUE_CLAIMS(n); IT(n).applied = zk[n].applied;
		replan()
	:: else ->
		IT(n).registered = 0;	/* only owners/C tells a death: it is read again, or evicted */
#ifdef IDS_TELL_DEATH
		remove_member();
#endif
	fi;
	n = 0
}

inline owners_read()
{
	if
	:: zk[n].owners ->
		IT(n).held = TRUE_CLAIMS(n); IT(n).applied = zk[n].applied; believe();
		if
		:: IT(n).id == zk[n].applied ->
			forget_command();
#ifdef EAGER
			IT(n).stopping = 0;
#endif
		:: else -> replan()
		fi;
		shrink_given()
	:: else -> remove_member()
	fi;
	n = 0
}

#ifdef SHARDS
#ifdef ELECT_WITHOUT_NUMBER
#define KNOWS_NUMBER(c) true
#else
#define KNOWS_NUMBER(c) (knows[c] == number)	/* an election checks the version of /consumers/shards */
#endif

inline raise_epoch(c, s)		/* of a shard, with the creation of its leader's node */
{
	leaders[s] = c + 1; CURRENT_OF(c, s) = 1; CURRENT_OF(1 - c, s) = 0
}

#define LEARNS_NUMBER knows[me] != number -> \
	knows[me] = number; printf("coordinator %d learns that the group belongs to shard %d\n", me, number)
#endif

proctype Coordinator(bit me)
{
	byte n, parts;
#ifdef NO_SYNC
	byte behind;
#endif

standby:
#ifdef LOAD_BEFORE_EPOCH		/* rule 1 */
	read_everything();
#endif
#ifdef NO_ELECTION_MULTI		/* rule 4 */
	atomic { leader == 0 -> leader = me + 1; printf("coordinator %d creates the coordinator's node\n", me) };
	atomic {
		if
		:: current[1 - me] = 0
		:: COORDINATOR_FAULT -> faults--;
			printf("its request to raise the epoch is lost, but the node is its own\n")
		fi;
		current[me] = 1;
		printf("coordinator %d leads\n", me)
	};
#elif defined(SHARDS)
	do
	:: atomic { LEADER == 0 && KNOWS_NUMBER(me) ->
		raise_epoch(me, knows[me]); printf("coordinator %d leads shard %d\n", me, knows[me]); break }
	:: atomic { LEARNS_NUMBER }
	od;
#else
	atomic { leader == 0 ->
		leader = me + 1; current[me] = 1; current[1 - me] = 0; printf("coordinator %d leads\n", me) };
#endif
#ifdef LOAD_BEFORE_EPOCH
	goto lead;
#endif

load:	read_everything();
#ifdef NO_SYNC
	behind = 0;
#endif

lead:	do
	:: atomic { FENCE && ANY(STOP_DUE) ->
		PICK(STOP_DUE);
		parts = LEAVING(n);
#ifdef EAGER
		IT(n).to_stop = 0; IT(n).stopping = 1;
#endif
		printf("coordinator %d tells consumer %d to stop {%d}\n", me, n, parts);
		create_command(STOP) }

	:: atomic { FENCE && ANY(START_DUE) ->
		PICK(START_DUE);
		parts = READY(n);
		printf("coordinator %d tells consumer %d to start {%d}\n", me, n, parts);
		create_command(START) }

	:: atomic { FENCE && ANY(IDS_CHANGED) -> PICK(IDS_CHANGED); ids_listed() }
	:: atomic { FENCE && ANY(OWNERS_CHANGED) -> PICK(OWNERS_CHANGED); owners_read() }

	:: atomic { FENCE && ANY(STRUCK_OFF) -> PICK(STRUCK_OFF); evict() }
#ifdef FALSE_CLAIMS			/* rule 21: read, and evicted at any version */
	:: atomic { FENCE && ANY(CLAIMS_FALSELY) ->
		PICK(CLAIMS_FALSELY);
		printf("coordinator %d finds that consumer %d claims {%d} falsely\n", me, n, zk[n].held & ~GIVEN(n));
		evict() }
#endif
#ifdef RECORD_AFTER_COMMAND
	:: atomic { FENCE && ANY(RECORD_DIFFERS) ->
		PICK(RECORD_DIFFERS);
		printf("coordinator %d records that consumer %d was given {%d}\n", me, n, GIVEN(n));
		zk[n].given = GIVEN(n); n = 0 }
#endif
	:: atomic { FENCE && faults > 0 && ANY(LATE_STOP) -> faults--; PICK(LATE_STOP); evict() }
	:: atomic { FENCE && faults > 0 && ANY(LATE_START) -> faults--; PICK(LATE_START); cancel() }

	:: atomic { FENCE && ANY(LEASE_OVER) ->
		PICK(LEASE_OVER);
		printf("coordinator %d removes the tombstone of consumer %d: {%d} is free\n", me, n, IT(n).tombstone);
		zk[n].evicted = 0; zk[n].tombstone = 0;
		IT(n).tomb = 0; IT(n).tombstone = 0; IT(n).old_lease = 0;
		make_plan();
		if
		:: n = 0
		:: LOST_REPLY; n = 0; goto load
		fi }

	/* The periodic reconciliation: only it finds who came and went between two lists (rule 19). */
	:: atomic { FENCE && ANY(OVERLOOKED) && !ANY(BUSY) -> goto load }

	:: atomic { LEADER != me + 1 || !FENCE ->
		printf("coordinator %d learns that it is deposed\n", me);
		if
		:: LEADER == me + 1 -> LEADER = 0	/* its node is of another election than the epoch */
		:: else
		fi;
		forget_everything(); CURRENT_EPOCH = 0; goto standby }

	:: atomic { COORDINATOR_FAULT && LEADER == me + 1 ->
		faults--;
		printf("coordinator %d crashes\n", me);
		LEADER = 0; forget_everything(); CURRENT_EPOCH = 0;
#ifdef SHARDS
		CURRENT_OF(me, 1 - knows[me]) = 0;
		if
		:: leaders[1 - knows[me]] == me + 1 -> leaders[1 - knows[me]] = 0
		:: else
		fi;
#endif
		goto standby }

#ifdef SHARDS
	:: atomic { COORDINATOR_FAULT && LEADER == me + 1 && FENCE ->
		faults--;
		printf("coordinator %d hands shard %d over\n", me, knows[me]);
		LEADER = 0; forget_everything(); CURRENT_EPOCH = 0; goto standby }
	:: atomic { LEARNS_NUMBER; forget_everything(); goto standby }
#endif
#ifdef KEEP_GROUP			/* it is elected for its shard of the new number, and serves the same groups as before */
	:: atomic { knows[me] != number && LEADER == 0 ->
		raise_epoch(me, knows[me]);
		printf("coordinator %d leads shard %d again, and goes on with the group\n", me, knows[me]) }
#endif
	od
}

/* ---- Consumer ---- */

#define MINE hand[me]
#define CURRENT (zk[n].option != NOTHING && zk[n].id == MINE.id)

inline put_down()
{
	MINE.option = NOTHING; MINE.parts = 0; MINE.id = 0; MINE.unknown = 0; MINE.half = 0; n = 0
}

inline forget_membership()
{
	d_step {
		emit[n] = 0; lease[n] = 0; MINE.name = NOBODY;
#ifdef FALSE_CLAIMS
		claimed[n] = (zk[n].owners -> claimed[n] : 0);
#endif
		put_down()
	}
}

inline register()			/* rule 14 and the tree: three nodes, one transaction, a new name */
{
	d_step {
		zk[n].ids = 1; zk[n].owners = 1; zk[n].channel = 1;
		MINE.name = n; lease[n] = 1;
		printf("consumer %d registers\n", n);
		n = 0
	}
}

inline acknowledged()
{
	if
	:: MINE.option == START -> emit[n] = emit[n] | MINE.parts	/* emit after the ack, never before */
	:: else -> emit[n] = emit[n] & ~MINE.parts
	fi;
	check();
	put_down()
}

inline cancelled()			/* a cancelled stop goes on from where the application is (rule 8) */
{
	printf("consumer %d drops the command: it is cancelled\n", n);
	if
	:: MINE.option == STOP -> emit[n] = emit[n] | MINE.parts
	:: else
	fi;
	check();
	put_down()
}

inline set_owners()
{
	if
	:: MINE.option == START -> printf("consumer %d acknowledges the start of {%d}\n", n, MINE.parts)
	:: else -> printf("consumer %d acknowledges the stop of {%d}\n", n, MINE.parts)
	fi;
	if
	:: zk[n].applied == MINE.id -> printf("=> the same command is applied twice\n"); assert(false)
	:: else
	fi;
	d_step {
		zk[n].held = (MINE.option == START -> zk[n].held | MINE.parts : zk[n].held & ~MINE.parts);
#ifdef FALSE_CLAIMS
		claimed[n] = claimed[n] & ~MINE.parts;
#endif
		/* The id that is applied is called 1, and what was called 1 takes its name. */
		zk[n].id = SWAPPED(zk[n].id);
		memory[0].view[n].id = SWAPPED(memory[0].view[n].id);
		memory[1].view[n].id = SWAPPED(memory[1].view[n].id);
		memory[0].view[n].applied = SWAPPED(memory[0].view[n].applied);
		memory[1].view[n].applied = SWAPPED(memory[1].view[n].applied);
		MINE.id = 1; zk[n].applied = 1
	};
	check()
}

inline delete_command()
{
#ifdef RETRY_CREATES_SECOND
	if
	:: zk[n].twice -> zk[n].twice = 0
	:: else -> zk[n].option = NOTHING; zk[n].parts = 0; zk[n].id = 0
	fi
#else
	d_step { zk[n].option = NOTHING; zk[n].parts = 0; zk[n].id = 0 }
#endif
}

proctype Consumer(bit me)
{
	byte n;

end:	do
	:: atomic { MINE.name == NOBODY && ANY(UNUSED) ->
		n = (UNUSED(0) -> 0 : (UNUSED(1) -> 1 : 2));
		register() }

	/* A command is read; a stop ends the emission at once, before its ack. */
	:: atomic { MINE.name != NOBODY && MINE.option == NOTHING && zk[MINE.name].option != NOTHING ->
		n = MINE.name;
		d_step { MINE.option = zk[n].option; MINE.parts = zk[n].parts; MINE.id = zk[n].id };
#ifndef STOP_AFTER_ACK
		if
		:: MINE.option == STOP -> emit[n] = emit[n] & ~MINE.parts
		:: else
		fi;
#endif
#ifdef EMIT_BEFORE_ACK
		if
		:: MINE.option == START -> emit[n] = emit[n] | MINE.parts; check()
		:: else
		fi;
#endif
		n = 0 }

	/* The ack: one transaction (rule 7) that fails when the command was cancelled (rule 10) or it was evicted. */
	:: atomic { MINE.option != NOTHING && !MINE.unknown && !MINE.half ->
		n = MINE.name;
		if
		:: !zk[n].owners -> printf("consumer %d finds that it is out of the group\n", n); forget_membership()
#ifdef ACK_IGNORES_CANCEL		/* rule 10 */
		:: zk[n].owners ->
#else
		:: zk[n].owners && !CURRENT -> cancelled()
		:: zk[n].owners && CURRENT ->
#endif
#ifdef ACK_DELETES_FIRST		/* rule 7 */
			printf("consumer %d deletes its command, and its owners do not say yet that it is applied\n", n);
			delete_command(); MINE.half = 1; n = 0
#else
			set_owners();
			if
			:: CURRENT -> delete_command()
			:: else
			fi;
			if
#ifdef STOP_AFTER_ACK
			:: MINE.half = 1; n = 0
#else
			:: acknowledged()
#endif
			:: CONSUMER_FAULT -> faults--;
				printf("the reply to the ack of consumer %d is lost\n", n);
				MINE.unknown = 1; lease[n] = 0; n = 0
			fi
		:: zk[n].owners && CURRENT && CONSUMER_FAULT -> faults--;
			printf("the ack of consumer %d is lost\n", n);
			MINE.unknown = 1; lease[n] = 0; n = 0
#endif
		fi }

	/* The outcome of an ack is unknown: after sync(), owners/C decides (rule 8). */
	:: atomic { MINE.unknown ->
		n = MINE.name;
#if defined(ASSUME_ACKED)
		acknowledged()
#elif defined(ASSUME_NOT_ACKED)
		cancelled()
#else
		if
		:: !zk[n].owners -> printf("consumer %d finds that it is out of the group\n", n); forget_membership()
		:: zk[n].owners && zk[n].applied == MINE.id -> acknowledged()
		:: zk[n].owners && zk[n].applied != MINE.id -> MINE.unknown = 0; n = 0
		fi
#endif
		}

	/* A renewal checks owners/C in a transaction (rule 11); one that would change nothing is left out. */
	:: atomic { MINE.name != NOBODY && (!lease[MINE.name] || !zk[MINE.name].owners) ->
		n = MINE.name;
		if
		:: zk[n].owners -> lease[n] = 1; printf("consumer %d renews its lease\n", n); check(); n = 0
#ifdef RENEW_BY_READ			/* a server that is cut off from its ensemble still answers */
		:: !zk[n].owners && !lease[n] ->
			lease[n] = 1; memory[0].view[n].old_lease = 0; memory[1].view[n].old_lease = 0;
			printf("consumer %d renews its lease at a server that is cut off\n", n);
			check(); n = 0
#endif
		:: !zk[n].owners -> printf("consumer %d finds that it is out of the group\n", n); forget_membership()
		fi }

#if defined(ACK_DELETES_FIRST) || defined(STOP_AFTER_ACK)
	:: atomic { MINE.half ->
		n = MINE.name;
#ifdef ACK_DELETES_FIRST
		if
		:: zk[n].owners -> set_owners(); acknowledged()
		:: else -> forget_membership()
		fi
#else
		acknowledged()
#endif
		}
#endif

#ifdef FALSE_CLAIMS
	:: atomic { faults > 0 && MINE.name != NOBODY && zk[MINE.name].owners && zk[MINE.name].held != EVERYTHING ->
		faults--;
		n = MINE.name;
		claimed[n] = claimed[n] | EVERYTHING & ~zk[n].held;
		emit[n] = emit[n] | claimed[n];
		printf("consumer %d claims {%d}, which it was not told to start\n", n, EVERYTHING & ~zk[n].held);
		zk[n].held = EVERYTHING; n = 0 }
#endif

	:: atomic { CONSUMER_FAULT && MINE.name != NOBODY ->
		faults--;
		n = MINE.name;
		printf("consumer %d crashes\n", n);
		forget_membership() }

	/* Leaving in good order: emission has ended, all nodes go in one transaction. */
	:: atomic { CONSUMER_FAULT && MINE.name != NOBODY && !MINE.unknown && zk[MINE.name].owners && zk[MINE.name].ids ->
		faults--;
		n = MINE.name;
		printf("consumer %d leaves\n", n);
		d_step {
			zk[n].ids = 0; zk[n].owners = 0; zk[n].held = 0; zk[n].applied = 0;
			zk[n].channel = 0; zk[n].option = NOTHING; zk[n].parts = 0; zk[n].id = 0
		};
		forget_membership() }
	od
}

/* ---- ZooKeeper's sessions, time, and what else happens to them ---- */

#ifdef LEASE_OUTLIVES_SESSION		/* rule 11 */
#define EXPIRES(n) (zk[n].owners && (!lease[n] || faults > 0))
#else
#define EXPIRES(n) (zk[n].owners && !lease[n])
#endif
#define HAS_LEASE(n) (zk[n].owners && lease[n])
#define LEASE_RUNS_OUT(n) (!zk[n].owners && lease[n])
#define REGISTERED(n) (zk[n].ids)

#ifdef SHARDS
#define LEADS_OTHER(c) (leaders[1 - number] == 0 && knows[c] == number)
#endif

proctype Surroundings()
{
	byte n;

end:	do
	:: atomic { ANY(EXPIRES) ->
		PICK(EXPIRES);
		printf("the session of consumer %d expires\n", n);
		if :: lease[n] -> faults-- :: else fi;
		zk[n].ids = 0; zk[n].owners = 0; zk[n].held = 0; zk[n].applied = 0;
#ifdef FALSE_CLAIMS
		forget_claims();
#endif
		n = 0 }
	:: atomic { ANY(LEASE_RUNS_OUT) ->
		PICK(LEASE_RUNS_OUT); printf("the lease of consumer %d ends\n", n); lease[n] = 0; n = 0 }
	:: atomic { CONSUMER_FAULT && ANY(HAS_LEASE) ->
		faults--;
		PICK(HAS_LEASE); printf("consumer %d is cut off until its lease ends\n", n); lease[n] = 0; n = 0 }
#ifdef SHARDS
	:: atomic { COORDINATOR_FAULT && leaders[0] != 0 ->
		faults--; printf("an operator deletes the node of shard 0's leader\n"); leaders[0] = 0 }
	:: atomic { COORDINATOR_FAULT && leaders[1] != 0 ->
		faults--; printf("an operator deletes the node of shard 1's leader\n"); leaders[1] = 0 }
	:: atomic { COORDINATOR_FAULT ->	/* one transaction */
		faults--;
		number = 1 - number; leaders[0] = 0; leaders[1] = 0;
#ifndef CHANGE_KEEPS_EPOCHS
		versions[0] = 0; versions[1] = 0; versions[2] = 0; versions[3] = 0;
#endif
		printf("an operator changes the number of shards: the group belongs to shard %d\n", number) }
	:: atomic { LEADS_OTHER(0) -> raise_epoch(0, 1 - number); printf("coordinator 0 leads shard %d\n", 1 - number) }
	:: atomic { LEADS_OTHER(1) -> raise_epoch(1, 1 - number); printf("coordinator 1 leads shard %d\n", 1 - number) }
#else
	:: atomic { COORDINATOR_FAULT && leader != 0 ->
		faults--; printf("an operator deletes the coordinator's node\n"); leader = 0 }
#endif
	:: atomic { CONSUMER_FAULT && ANY(REGISTERED) ->
		faults--;
		PICK(REGISTERED); printf("an operator removes the registration of consumer %d\n", n); zk[n].ids = 0; n = 0 }
	od
}

#ifdef LIVENESS
proctype Clock()			/* time goes on: no run ends, and only weak fairness lets the others move */
{
	do
	:: faults <= FAULTS
	od
}

ltl settles { <>[] SERVED }
#else
proctype Judge()			/* whenever nothing more can happen, everything is owned and emitted */
{
	timeout ->
	if
	:: SERVED
	:: else -> printf("=> nothing more happens, and not everything is owned and emitted\n"); assert(false)
	fi
}
#endif

init {
	atomic {
		zk[0].ids = 1; zk[0].owners = 1; zk[0].channel = 1; lease[0] = 1;
		hand[0].name = 0; hand[1].name = NOBODY;
		run Coordinator(0); run Coordinator(1); run Consumer(0); run Consumer(1); run Surroundings();
#ifdef LIVENESS
		run Clock()
#else
		run Judge()
#endif
	}
}
