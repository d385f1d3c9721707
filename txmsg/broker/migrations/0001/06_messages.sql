-- Committed messages, in segments, and the memory of outcomes.

-- Segments hold messages and the memory of rollbacks; they are made ahead, opened once, closed once, dropped whole.
create table txmsg.segment (
    id int primary key,
    state text collate "C" not null check (state in ('ahead', 'open', 'closed')),
    created_at timestamptz not null default now(),
    opened_at timestamptz,
    closed_at timestamptz,
    -- Marked first, then its tables are detached and dropped, then this row is deleted: a broker that is interrupted
    -- leaves work that the next one finishes. A segment that is marked is not read any more.
    dropping boolean not null default false,
    check ((state = 'ahead') = (opened_at is null)),
    check ((state = 'closed') = (closed_at is not null)),
    constraint segment_dropped_is_closed check (not dropping or state = 'closed')
);
create unique index segment_one_open on txmsg.segment (state) where state = 'open';

-- Where each queue starts in a segment. No row: the queue is younger than the segment, and starts at 0.
create table txmsg.segment_base (
    segment int not null references txmsg.segment on delete cascade,
    queue int not null,
    base bigint not null check (base >= 0),
    primary key (segment, queue)
);

-- Offsets from which a queue's times are earlier than before, because the clock was set back: from each of these
-- offsets to the next stored_at only rises. See offset_at.
create table txmsg.clock_step (
    segment int not null references txmsg.segment on delete cascade,
    queue int not null,
    queue_offset bigint not null,
    primary key (segment, queue, queue_offset)
);

create table txmsg.message (
    segment int not null,
    queue int not null,
    queue_offset bigint not null check (queue_offset >= 0),
    transaction_id uuid not null,
    n smallint not null,
    key text collate "C",
    tag text collate "C",
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null default now(),
    ordering_key text collate "C",
    half_stored_at timestamptz,
    -- 0 a plain send, 1 the client, 2 a check, 3 a person.
    decided_by smallint not null default 0,
    primary key (segment, queue, queue_offset),
    constraint message_once_in_segment unique (segment, transaction_id, n)
) partition by list (segment);
create index message_key on txmsg.message (key) where key is not null;

create table txmsg.rolled_back (
    segment int not null,
    transaction_id uuid not null,
    at timestamptz not null default now(),
    -- It was committed, but all its messages were taken away before they entered their queues: recalled, or deleted
    -- with their topic.
    committed boolean not null default false,
    -- For people, of its first message. decided_by: as in message; null: it was committed.
    decided_by smallint,
    queue int,
    producer int,
    half_stored_at timestamptz,
    primary key (segment, transaction_id)
) partition by list (segment);

-- Committed messages that are not due yet.
create table txmsg.scheduled (
    transaction_id uuid not null,
    n smallint not null,
    deliver_at timestamptz not null,
    -- As in half_message.
    deliver_after interval,
    queue int not null,
    key text collate "C",
    tag text collate "C",
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null default now(),
    half_stored_at timestamptz,
    decided_by smallint not null,
    primary key (transaction_id, n)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_cost_delay = 0);
create index scheduled_deliver_at on txmsg.scheduled (deliver_at);

-- The first offset of a queue that is kept. For a queue in memory that a crash has emptied it is above all offsets that
-- it has given out before.
create function txmsg.first_kept(p_queue int) returns bigint language sql stable as $$
    select coalesce((select b.base from txmsg.segment_base b
                      where b.queue = p_queue
                        and b.segment = (select min(s.id) from txmsg.segment s
                                          where s.state <> 'ahead' and not s.dropping)), 0)
$$;
