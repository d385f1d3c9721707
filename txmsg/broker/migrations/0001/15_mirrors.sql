-- Mirrors, written by tailers (txmsg/binlog). A mirror counts as a group for retention: messages that it has not
-- mirrored yet are unread.

create table txmsg.mirror (
    name text collate "C" primary key check (name ~ '^[a-z][a-z0-9_]{0,29}$'),
    -- The topics by patterns with * and ?: those that fit one of include and none of exclude.
    include text[] collate "C" not null,
    exclude text[] collate "C" not null,
    -- Place, id and generation of the log, as its tailer saw them last.
    log text collate "C",
    log_id bigint,
    generation int,
    created_at timestamptz not null default now(),
    seen_at timestamptz
);

-- Everything of a queue before next_offset is in the log, on disk. Written now and then, so it may be more.
create table txmsg.mirror_queue (
    mirror text collate "C" not null references txmsg.mirror on delete cascade,
    queue int not null references txmsg.queue on delete cascade,
    next_offset bigint not null check (next_offset >= 0),
    updated_at timestamptz not null default now(),
    -- The reason why the queue is not mirrored any further, until its tailer starts again; null: it is mirrored.
    stopped text collate "C",
    primary key (mirror, queue)
) with (fillfactor = 50);

-- Returns true if a topic fits one of these patterns. Names of topics contain neither * nor ?.
create function txmsg.fits(p_topic text, p_patterns text[]) returns boolean language sql immutable as $$
    select coalesce(bool_or(p_topic like translate(replace(replace(replace(p, '\', '\\'), '%', '\%'), '_', '\_'),
                                                   '*?', '%_')), false)
      from unnest(p_patterns) p
$$;

-- The queues that a mirror holds: not those of topics in memory, which PostgreSQL's log does not have.
create function txmsg.mirrored_queues(p_include text[], p_exclude text[]) returns setof txmsg.queue
language sql stable as $$
    select q.* from txmsg.topic t join txmsg.queue q on q.topic_id = t.id
     where t.durability <> 'memory' and txmsg.fits(t.name, p_include) and not txmsg.fits(t.name, p_exclude)
$$;
