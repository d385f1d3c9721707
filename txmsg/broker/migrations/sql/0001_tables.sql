-- The Notify database, revision 0001: tables. txmsg/broker/schema.py says the same in SQLAlchemy; a test compares.

create schema if not exists txmsg;

-- Which Notify database this is. A transaction has one shard; its id travels with the reply to the half message.
create table txmsg.notify_db (
    only_row boolean primary key default true check (only_row),
    shard uuid not null default gen_random_uuid()
);
insert into txmsg.notify_db default values;

create table txmsg.topic (
    id int generated always as identity primary key,
    name text not null unique check (length(name) between 1 and 127),
    queue_count int not null check (queue_count between 1 and 1024),
    created_at timestamptz not null default now()
);

create table txmsg.queue (
    id int generated always as identity primary key,
    topic_id int not null references txmsg.topic,
    number int not null check (number >= 0),
    unique (topic_id, number)
);

-- Who sends half messages, and which fence can answer for them. Few rows; halves carry the id.
create table txmsg.producer (
    id int generated always as identity primary key,
    group_name text not null check (length(group_name) between 1 and 127),
    fence_id uuid,
    unique nulls not distinct (group_name, fence_id)
);

create table txmsg.half_message (
    transaction_id uuid not null,
    n smallint not null check (n >= 0),
    seq bigint not null generated always as identity (cache 64),
    queue int not null,
    producer int not null,
    key text,
    tag text,
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null default now(),
    -- The check state of a transaction stands on its first half only.
    next_check_at timestamptz,
    checks int not null default 0,
    parked_reason text,
    primary key (transaction_id, n),
    constraint half_message_check_state_on_first check (n = 0 or (next_check_at is null and parked_reason is null)),
    constraint half_message_parked_is_not_checked check (parked_reason is null or next_check_at is null)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 100000);
create index half_message_next_check_at on txmsg.half_message (next_check_at) where next_check_at is not null;
create index half_message_parked on txmsg.half_message (transaction_id) where parked_reason is not null;

-- Segments hold messages and the memory of rollbacks; they are made ahead, opened once, closed once, dropped whole.
create table txmsg.segment (
    id int primary key,
    state text not null check (state in ('ahead', 'open', 'closed')),
    created_at timestamptz not null default now(),
    opened_at timestamptz,
    closed_at timestamptz,
    check ((state = 'ahead') = (opened_at is null)),
    check ((state = 'closed') = (closed_at is not null))
);
create unique index segment_one_open on txmsg.segment (state) where state = 'open';

-- Where each queue starts in a segment. No row: the queue is younger than the segment, and starts at 0.
create table txmsg.segment_base (
    segment int not null references txmsg.segment on delete cascade,
    queue int not null,
    base bigint not null check (base >= 0),
    primary key (segment, queue)
);

create table txmsg.message (
    segment int not null,
    queue int not null,
    queue_offset bigint not null check (queue_offset >= 0),
    transaction_id uuid not null,
    n smallint not null,
    key text,
    tag text,
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null default now(),
    primary key (segment, queue, queue_offset),
    constraint message_once_in_segment unique (segment, transaction_id, n)
) partition by list (segment);
create index message_key on txmsg.message (key) where key is not null;

create table txmsg.rolled_back (
    segment int not null,
    transaction_id uuid not null,
    at timestamptz not null default now(),
    primary key (segment, transaction_id)
) partition by list (segment);

create table txmsg.consumer_group (
    id int generated always as identity primary key,
    name text not null unique check (length(name) between 1 and 127),
    created_at timestamptz not null default now()
);

create table txmsg.cursor (
    group_id int not null references txmsg.consumer_group on delete cascade,
    queue_id int not null references txmsg.queue,
    next_offset bigint not null check (next_offset >= 0),
    acked int8multirange not null default '{}',
    epoch bigint not null,
    updated_at timestamptz not null default now(),
    primary key (group_id, queue_id)
);

create table txmsg.retry (
    group_id int not null references txmsg.consumer_group on delete cascade,
    queue_id int not null references txmsg.queue,
    queue_offset bigint not null,
    attempt int not null check (attempt >= 1),
    due_at timestamptz not null,
    transaction_id uuid not null,
    n smallint not null,
    key text,
    tag text,
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null,
    last_error text,
    primary key (group_id, queue_id, queue_offset)
);
create index retry_due on txmsg.retry (group_id, due_at);

create table txmsg.dead_letter (
    group_id int not null references txmsg.consumer_group on delete cascade,
    queue_id int not null references txmsg.queue,
    queue_offset bigint not null,
    attempts int not null,
    died_at timestamptz not null default now(),
    transaction_id uuid not null,
    n smallint not null,
    key text,
    tag text,
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null,
    last_error text,
    primary key (group_id, queue_id, queue_offset)
);

create table txmsg.lease (
    name text primary key,
    broker_id text not null,
    epoch bigint not null,
    expires_at timestamptz not null
);
