-- Half messages, their producers, and the times of their checks.

-- The producer groups of half messages, each with the fence that can answer for them. Few rows; halves carry the id.
create table txmsg.producer (
    id int generated always as identity primary key,
    group_name text collate "C" not null check (length(group_name) between 1 and 127),
    fence_id uuid,
    unique nulls not distinct (group_name, fence_id)
);

-- The check settings of producer groups that differ from the brokers' settings. null: the brokers' setting applies.
create table txmsg.check_policy (
    group_name text collate "C" primary key check (length(group_name) between 1 and 127),
    first_check_s float8 check (first_check_s >= 0),
    check_interval_s float8 check (check_interval_s > 0),
    checks_max int check (checks_max >= 1),
    no_client_park_s float8 check (no_client_park_s > 0)
);

-- An ordered message enters its queue only when no half of its key that was stored earlier is undecided. Until then its
-- row stays here, decided: with producer 0 if it was sent plain. order_seq is the order in which ordered halves were
-- stored.
create table txmsg.half_message (
    transaction_id uuid not null,
    n smallint not null,
    seq bigint not null generated always as identity (cache 64),
    queue int not null,
    producer int not null,
    key text collate "C",
    tag text collate "C",
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null default now(),
    -- The check state of a transaction is on its first half only.
    next_check_at timestamptz,
    checks int not null default 0,
    parked_reason text collate "C",
    ordering_key text collate "C",
    order_seq bigint,
    decided boolean not null default false,
    decided_by smallint,
    deliver_at timestamptz,
    -- The delay after storing, if that is how deliver_at was given.
    deliver_after interval,
    primary key (transaction_id, n),
    -- Few constraints, because PostgreSQL reads and compiles the text of each for each statement.
    -- Only the first half of an undecided transaction is checked, or parked instead.
    constraint half_message_check_state check (
        num_nonnulls(next_check_at, parked_reason) <= (n = 0 and not decided)::int),
    -- Only ordered messages wait for their key; they are never delayed.
    constraint half_message_ordered check (
        case when ordering_key is null then order_seq is null and not decided
             else order_seq is not null and deliver_at is null end),
    constraint half_message_decided_by_one check (decided = (decided_by is not null))
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 100000);
create sequence txmsg.half_order;
create index half_message_next_check_at on txmsg.half_message (next_check_at) where next_check_at is not null;
create index half_message_parked on txmsg.half_message (transaction_id) where parked_reason is not null;
-- Two indexes, so that finding the message that holds others back does not read over those that wait with it.
create index half_message_undecided on txmsg.half_message (queue, ordering_key, order_seq)
    where ordering_key is not null and not decided;
create index half_message_held_back on txmsg.half_message (queue, ordering_key, order_seq) where decided;
