-- Consumer groups, and the messages that each of them has not processed.

create table txmsg.consumer_group (
    id int generated always as identity primary key,
    name text collate "C" not null unique check (length(name) between 1 and 127),
    created_at timestamptz not null default now(),
    -- As for topics.
    created_by text collate "C" check (length(created_by) between 1 and 127),
    -- Seconds before each retry, the last one repeated; null: the broker's.
    retry_delays_s float8[] check (cardinality(retry_delays_s) > 0),
    retries_max int check (retries_max >= 0),
    -- The fate of an ordering key whose message is a dead letter: it continues, or is parked for an operator.
    poisoned_key text collate "C" not null default 'continue' check (poisoned_key in ('continue', 'park')),
    -- Messages per second that brokers deliver, each on its own; null: no limit.
    deliver_rate_max float8 check (deliver_rate_max > 0),
    -- RocketMQ's push consumers are told to handle messages of one ordering key in their order, and to retry them there.
    orderly boolean not null default false,
    -- Delivery is stopped until an operator starts it again.
    stopped boolean not null default false,
    -- When an unused group is deleted with its cursors, as those of broadcasting members are; null: never.
    expires_after_s float8 check (expires_after_s > 0),
    seen_at timestamptz not null default now(),
    version bigint not null default 0
);

-- The prefixes of topics by which a group reads them, if it did not begin each at its first message: topics that are
-- created later have a higher id than the newest one at that time, and of these it reads all messages.
create table txmsg.group_prefix (
    group_id int not null references txmsg.consumer_group on delete cascade,
    prefix text collate "C" not null check (length(prefix) <= 127),
    newest_topic int not null,
    primary key (group_id, prefix)
);

create table txmsg.cursor (
    group_id int not null references txmsg.consumer_group on delete cascade,
    queue_id int not null references txmsg.queue,
    next_offset bigint not null check (next_offset >= 0),
    acked int8multirange not null default '{}',
    epoch bigint not null,
    updated_at timestamptz not null default now(),
    -- The position that an operator has requested; the broker that delivers the queue continues there.
    seek_to bigint check (seek_to >= 0),
    -- The highest generation given in this queue: each request to handle messages again takes the next one.
    generation int not null default 0,
    -- The offsets from which each generation is delivered, ascending: `seek --again` adds one, and ends those after it.
    again_from bigint[] not null default '{}',
    again_generations int[] not null default '{}',
    -- Until when consumers may hold ordered messages that the lease's former holder gave them; null: none are held.
    held_until timestamptz,
    -- The duration that was noted: they hold them no longer, though the clock may have been set back.
    held_s double precision,
    -- The client ids of these consumers: when each of them has said that it holds none, the wait ends.
    held_by jsonb check (jsonb_typeof(held_by) = 'array'),
    primary key (group_id, queue_id),
    check (cardinality(again_generations) = cardinality(again_from) and cardinality(again_from) <= 1000)
);

-- The position of each group in each queue that it reads. A cursor is written when a broker first delivers the queue to
-- the group. A queue that was added while the group had no member has none: the group reads all of it that is kept, so
-- it counts as lag, and retention keeps it. Lag, retention and administration read this view; delivery creates the
-- missing cursor at the same offset (claim_cursors).
create view txmsg.effective_cursor as
    select c.group_id, c.queue_id, coalesce(c.seek_to, c.next_offset) as next_offset,
           case when c.seek_to is null then c.acked else '{}' end as acked, c.seek_to is not null as seeking
      from txmsg.cursor c
    union all
    select r.group_id, q.id, txmsg.first_kept(q.id), '{}', false
      from (select distinct c.group_id, k.topic_id from txmsg.cursor c join txmsg.queue k on k.id = c.queue_id) r
      join txmsg.topic t on t.id = r.topic_id
      join txmsg.queue q on q.topic_id = r.topic_id and q.number < coalesce(t.read_queues, t.queue_count)
     where not exists (select from txmsg.cursor c where c.group_id = r.group_id and c.queue_id = q.id);

-- Messages whose delivery failed, as copies: their segments may be dropped meanwhile.
create table txmsg.retry (
    group_id int not null references txmsg.consumer_group on delete cascade,
    queue_id int not null references txmsg.queue,
    queue_offset bigint not null,
    -- 0: not delivered yet; it waits behind an earlier message of its ordering key, or was redriven.
    attempt int not null check (attempt >= 0),
    due_at timestamptz not null,
    transaction_id uuid not null,
    n smallint not null,
    key text collate "C",
    tag text collate "C",
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null,
    last_error text collate "C",
    ordering_key text collate "C",
    -- [{"attempt": 1, "at": "...", "error": "..."}, ...], oldest first.
    failures jsonb not null default '[]',
    -- Redelivered on request after it was dead: to the inbox it is another message than before.
    generation int not null default 0,
    -- The number of consumers that were lost with it, without counting an attempt; from the second on it is delivered
    -- alone.
    losses int not null default 0 check (losses >= 0),
    primary key (group_id, queue_id, queue_offset)
);
create index retry_due on txmsg.retry (group_id, due_at);
create index retry_key on txmsg.retry (group_id, queue_id, ordering_key, queue_offset) where ordering_key is not null;

create table txmsg.dead_letter (
    group_id int not null references txmsg.consumer_group on delete cascade,
    queue_id int not null references txmsg.queue,
    queue_offset bigint not null,
    attempts int not null,
    died_at timestamptz not null default now(),
    transaction_id uuid not null,
    n smallint not null,
    key text collate "C",
    tag text collate "C",
    headers bytea,
    body bytea not null,
    born_at timestamptz not null,
    stored_at timestamptz not null,
    last_error text collate "C",
    ordering_key text collate "C",
    failures jsonb not null default '[]',
    generation int not null default 0,
    -- Later messages of its ordering key wait until an operator redrives or purges it.
    blocks_key boolean not null default false,
    primary key (group_id, queue_id, queue_offset)
);
create index dead_letter_died_at on txmsg.dead_letter (group_id, died_at);
create index dead_letter_blocks on txmsg.dead_letter (group_id, queue_id, ordering_key) where blocks_key;
