-- Topics and their queues.

create table txmsg.topic (
    id int generated always as identity primary key,
    name text collate "C" not null unique check (length(name) between 1 and 127),
    queue_count int not null check (queue_count between 1 and 1024),
    created_at timestamptz not null default now(),
    -- The user who has created it, whose number of topics may be limited; null: created without authentication.
    created_by text collate "C" check (length(created_by) between 1 and 127),
    -- Messages enter the first write_queues, and are delivered from the first read_queues. null: all queue_count.
    write_queues int check (write_queues between 1 and queue_count),
    read_queues int check (read_queues between 1 and queue_count),
    -- Ordering keys are spread over the first ordered_queues; this changes only while all of them are drained.
    ordered_queues int not null check (ordered_queues between 1 and queue_count),
    -- 2 write, 4 read, 6 both, 0 neither.
    permission smallint not null default 6 check (permission in (0, 2, 4, 6)),
    durability text collate "C" not null default 'sync'
        check (durability in ('replicated', 'sync', 'async', 'memory')),
    -- The fate of messages older than retention_max_s that a group has not read.
    unread text collate "C" not null default 'keep' check (unread in ('keep', 'drop')),
    -- The type of the messages that it accepts: sent by a transaction, delayed, with an ordering key, or none of these.
    message_type text collate "C" not null default 'any'
        check (message_type in ('any', 'normal', 'fifo', 'delay', 'transaction')),
    -- Messages per second that brokers accept, each on its own; null: no limit.
    send_rate_max float8 check (send_rate_max > 0),
    -- Rises with each change, by which brokers notice it.
    version bigint not null default 0,
    -- When the queues that brokers send to last changed: queues that they must not use any more are changed only later.
    write_changed_at timestamptz not null default now(),
    -- Since when events of its messages are journaled; null: they are not.
    journal_since timestamptz,
    -- From when on bodies are stored encrypted, each with a key that is kept for body_keys_kept_s; null: they are not.
    erasable_since timestamptz,
    body_keys_kept_s float8 check (body_keys_kept_s > 0),
    check ((erasable_since is null) = (body_keys_kept_s is null))
);
create index topic_durability on txmsg.topic (durability) where durability <> 'sync';
-- Batches read this index first: it has the topics that need more work than others.
create index topic_special on txmsg.topic (id) where durability <> 'sync' or journal_since is not null;

-- The schemas of a topic's payloads, by the version that messages name. Clients decide which may be added.
create table txmsg.topic_schema (
    topic_id int not null references txmsg.topic,
    version int not null check (version > 0),
    content_type text collate "C" not null check (length(content_type) between 1 and 127),
    -- A JSON Schema.
    schema text collate "C" not null check (length(schema) <= 65536),
    registered_at timestamptz not null default now(),
    registered_by text collate "C" check (length(registered_by) between 1 and 127),
    primary key (topic_id, version)
);

create table txmsg.queue (
    id int generated always as identity primary key,
    topic_id int not null references txmsg.topic,
    number int not null check (number >= 0),
    unique (topic_id, number)
);

-- Returns true if two queues belong to one topic. They differ for a repeat if the topic got more queues meanwhile.
create function txmsg.same_topic(p_queue int, p_other int) returns boolean language sql stable as $$
    select p_queue = p_other or (select count(distinct q.topic_id) from txmsg.queue q where q.id in (p_queue, p_other)) < 2
$$;
