-- The Notify database, revision 0002: tables. It only adds, so that brokers of 0.1, which know 0001, run on beside those
-- of this release until the last of them is replaced.

-- The oldest revision whose brokers may run on this database. A migration that takes something away raises it.
alter table txmsg.notify_db add column works_from text not null default '0001';

alter table txmsg.topic
    -- Messages enter the first write_queues, and are delivered from the first read_queues. null: all queue_count.
    add column write_queues int check (write_queues between 1 and queue_count),
    add column read_queues int check (read_queues between 1 and queue_count),
    -- Ordering keys are spread over the first ordered_queues; this changes only while all of them are drained.
    add column ordered_queues int check (ordered_queues between 1 and queue_count),
    -- 2 write, 4 read, 6 both, 0 neither.
    add column permission smallint not null default 6 check (permission in (0, 2, 4, 6)),
    add column durability text not null default 'sync'
        check (durability in ('replicated', 'sync', 'async', 'memory')),
    -- What becomes of messages older than retention_max_s that a group has not passed.
    add column unread text not null default 'keep' check (unread in ('keep', 'drop')),
    -- Messages per second that brokers take, each on its own; null: no limit.
    add column send_rate_max float8 check (send_rate_max > 0),
    -- Rises with each change, so that brokers see it.
    add column version bigint not null default 0,
    -- When brokers were last told to send elsewhere: what they must not write to any more is touched only later.
    add column write_changed_at timestamptz not null default now();
update txmsg.topic set ordered_queues = queue_count;
create index topic_durability on txmsg.topic (durability) where durability <> 'sync';

alter table txmsg.consumer_group
    -- Seconds before each retry, the last one repeated; null: the broker's.
    add column retry_delays_s float8[] check (cardinality(retry_delays_s) > 0),
    add column retries_max int check (retries_max >= 0),
    -- What becomes of an ordering key whose message is a dead letter: it goes on, or waits for a person.
    add column poisoned_key text not null default 'continue' check (poisoned_key in ('continue', 'park')),
    -- Messages per second that brokers deliver, each on its own; null: no limit.
    add column deliver_rate_max float8 check (deliver_rate_max > 0),
    -- When a group that nobody uses is deleted with its cursors, as those of broadcasting members are; null: never.
    add column expires_after_s float8 check (expires_after_s > 0),
    add column seen_at timestamptz not null default now(),
    add column version bigint not null default 0;

-- Marked first, then its tables are detached and dropped, then this row goes: whoever is interrupted leaves work that
-- the next one finishes. Nobody begins to read in a segment that is marked.
alter table txmsg.segment
    add column dropping boolean not null default false,
    add constraint segment_dropped_is_closed check (not dropping or state = 'closed');

-- An ordered message enters its queue only when no half of its key that was stored earlier is undecided. Until then
-- its row stays here, decided. order_seq is the order in which ordered halves were stored.
create sequence txmsg.half_order;
alter table txmsg.half_message
    add column ordering_key text,
    add column order_seq bigint,
    add column decided boolean not null default false,
    add column decided_by smallint,
    add column deliver_at timestamptz,
    add constraint half_message_ordered check ((ordering_key is null) = (order_seq is null)),
    add constraint half_message_ordered_is_not_delayed check (ordering_key is null or deliver_at is null),
    add constraint half_message_only_ordered_wait check (ordering_key is not null or not decided),
    add constraint half_message_decided_is_not_checked
        check (not decided or (next_check_at is null and parked_reason is null));
-- Apart, so that what waits for a key is not looked through to find what it waits for.
create index half_message_undecided on txmsg.half_message (queue, ordering_key, order_seq)
    where ordering_key is not null and not decided;
create index half_message_held_back on txmsg.half_message (queue, ordering_key, order_seq) where decided;

-- decided_by: 0 a plain send, 1 the client, 2 a check, 3 a person; null: written by a broker of 0.1.
alter table txmsg.message
    add column ordering_key text,
    add column half_stored_at timestamptz,
    add column decided_by smallint;

-- committed: all its messages were taken away before they entered their queues: recalled, or deleted with their topic.
alter table txmsg.rolled_back add column committed boolean not null default false;

-- When halves of a producer group are checked, where that is not as the brokers say. null: as they say.
create table txmsg.check_policy (
    group_name text primary key check (length(group_name) between 1 and 127),
    first_check_s float8 check (first_check_s >= 0),
    check_interval_s float8 check (check_interval_s > 0),
    checks_max int check (checks_max >= 1),
    no_client_park_s float8 check (no_client_park_s > 0)
);

-- Where a queue goes on with earlier times than before, for the clock was set back: from each of these offsets to the next
-- stored_at only rises. See offset_at_2.
create table txmsg.clock_step (
    segment int not null references txmsg.segment on delete cascade,
    queue int not null,
    queue_offset bigint not null,
    primary key (segment, queue, queue_offset)
);

-- Committed messages that are not due yet.
create table txmsg.scheduled (
    transaction_id uuid not null,
    n smallint not null,
    due_at timestamptz not null,
    queue int not null,
    key text,
    tag text,
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null default now(),
    half_stored_at timestamptz,
    decided_by smallint not null,
    primary key (transaction_id, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0);
create index scheduled_due on txmsg.scheduled (due_at);

alter table txmsg.retry
    -- 0: not delivered yet; it waits behind an earlier message of its ordering key, or was redriven.
    drop constraint retry_attempt_check,
    add constraint retry_attempt_check check (attempt >= 0),
    add column ordering_key text,
    -- [{"attempt": 1, "at": "...", "error": "..."}, ...], oldest first.
    add column failures jsonb not null default '[]',
    -- Redelivered on request after it was dead: the inbox takes it for another message than before.
    add column generation int not null default 0;
create index retry_key on txmsg.retry (group_id, queue_id, ordering_key, queue_offset) where ordering_key is not null;

alter table txmsg.dead_letter
    add column ordering_key text,
    add column failures jsonb not null default '[]',
    add column generation int not null default 0,
    -- Later messages of its ordering key wait until a person redrives or purges it.
    add column blocks_key boolean not null default false;
create index dead_letter_died_at on txmsg.dead_letter (group_id, died_at);
create index dead_letter_blocks on txmsg.dead_letter (group_id, queue_id, ordering_key) where blocks_key;

alter table txmsg.cursor
    -- Where the group is to go on, as a person said; the broker that delivers the queue begins there.
    add column seek_to bigint check (seek_to >= 0),
    -- The highest that was given in this queue: each request to handle something again takes the next one.
    add column generation int not null default 0,
    -- From which offset on which generation is delivered, ascending: `seek --again` adds one, and ends those after it.
    add column again_from bigint[] not null default '{}',
    add column again_generations int[] not null default '{}'
        check (cardinality(again_generations) = cardinality(again_from) and cardinality(again_from) <= 1000),
    -- Until when consumers may hold ordered messages that the lease's former holder gave them; null: none are held.
    add column held_until timestamptz,
    -- For how long that was noted: they hold them no longer, though the clock may have been set back.
    add column held_s double precision;

-- Who is there. A broker whose time is over is dead to the others.
create table txmsg.broker (
    id text primary key,
    address text not null,
    -- dead: its time was over, and its queues were given to others. It is shown for a day.
    state text not null default 'active' check (state in ('active', 'draining', 'dead')),
    release text not null,
    schema_revision text not null,
    started_at timestamptz not null default now(),
    heartbeat_at timestamptz not null default now(),
    expires_at timestamptz not null
);

-- Which broker delivers a queue. wanted_by: it is to be handed over to this one. Epochs come from lease 'delivery', which
-- the brokers of this release hold together.
create table txmsg.queue_lease (
    queue_id int primary key references txmsg.queue on delete cascade,
    broker_id text,
    epoch bigint not null,
    wanted_by text,
    check (wanted_by is null or broker_id is not null)
);
create index queue_lease_broker on txmsg.queue_lease (broker_id);

-- The queues in memory that hold all that entered them. Unlogged, as their messages are: a crash of PostgreSQL empties
-- both, and a queue in memory that is missing here has lost its messages (memory_end_2).
create unlogged table txmsg.memory_queue (
    queue int primary key references txmsg.queue on delete cascade
);
