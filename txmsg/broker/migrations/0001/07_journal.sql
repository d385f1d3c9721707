-- The journal: events of messages of topics that have one, as far as other tables do not keep them. For people only: no
-- other part depends on it.

-- In partitions of the segments of messages: an entry is written into the open segment, so it is kept at least as long
-- as its message, and dropped with later ones. Indexes are partial, as each entry has one of both keys.
create sequence txmsg.journal_seq;
create table txmsg.journal (
    segment int not null,
    -- Orders entries of one moment. `at` is of this server's clock.
    seq bigint not null default nextval('txmsg.journal_seq'),
    at timestamptz not null,
    -- As JournalEntry of administration/messages.py says.
    event text collate "C" not null,
    -- For a message that may not be in its queue yet, or a transaction (n 0).
    transaction_id uuid,
    n smallint,
    -- For messages in their queue: consecutive offsets, at most 1024, with the same event at the same time.
    queue int,
    first_offset bigint,
    last_offset bigint,
    group_name text collate "C",
    -- The client or broker that did it; for an outcome: client, check or person.
    actor text collate "C",
    attempt int,
    detail text collate "C",
    until timestamptz,
    -- For lost: the number of entries.
    entries bigint
) partition by list (segment);
create index journal_transaction on txmsg.journal (transaction_id) where transaction_id is not null;
create index journal_offset on txmsg.journal (queue, first_offset) where first_offset is not null;
create index journal_lost on txmsg.journal (at) where event = 'lost';

-- Returns those of the queues that have a journal; null: none.
create function txmsg.journaled(p_queues int[]) returns int[] language plpgsql stable as $$
begin  -- as the functions below not one of SQL, which would be planned with each call
    return (select array_agg(q.id) from txmsg.queue q join txmsg.topic t on t.id = q.topic_id
             where t.journal_since is not null and q.id = any(p_queues));
end $$;

-- Notes those of the named half messages that this transaction has stored in these queues.
create function txmsg.journal_halves(p_segment int, p_queues int[], p_ids uuid[]) returns void language plpgsql as $$
begin
    insert into txmsg.journal (segment, at, event, transaction_id, n, group_name)
    select p_segment, h.stored_at, 'half', h.transaction_id, h.n, p.group_name
      from txmsg.half_message h join txmsg.producer p on p.id = h.producer
     where h.transaction_id = any(p_ids) and h.queue = any(p_queues) and h.stored_at = now()
     order by h.transaction_id, h.n;
end $$;

-- Notes the outcomes of undecided transactions, before their rows are deleted. The caller holds the locks of the
-- queues.
create function txmsg.journal_outcomes(
    p_segment int, p_queues int[], p_commit uuid[], p_rollback uuid[], p_by_check uuid[], p_by_person uuid[]
) returns void language plpgsql as $$
begin
    insert into txmsg.journal (segment, at, event, transaction_id, n, actor, until)
    select p_segment, clock_timestamp(), case when h.transaction_id = any(p_commit) then 'commit' else 'rollback' end,
           h.transaction_id, h.n,
           case when h.transaction_id = any(p_by_check) then 'check'
                when h.transaction_id = any(p_by_person) then 'person' else 'client' end, h.deliver_at
      from txmsg.half_message h
     where h.transaction_id = any(p_commit || p_rollback) and h.queue = any(p_queues) and not h.decided
     order by h.transaction_id, h.n;
end $$;
