-- The batch: everything that one call of a broker writes. apply_batch is below; before it stand its parts that most
-- batches do not need. Each is called by a statement of its own, so that it sees what was committed meanwhile.
--
-- No condition on rows of transactions may imply that of half_message_undecided or half_message_held_back: with
-- statistics that say "empty" the planner would read one of these as a whole (ran: 25,000 pages a batch).

-- Of halves that were not stored because their ids exist: returns those that were stored with another content.
create function txmsg.other_halves(
    p_id uuid[], p_n smallint[], p_queue int[], p_producer int[], p_key text[], p_tag text[], p_headers bytea[],
    p_body bytea[], p_ordering_key text[], p_deliver_at timestamptz[], p_deliver_after_us bigint[]
) returns table (kind text, id uuid, queue int, queue_offset bigint) language plpgsql as $$
#variable_conflict use_column
begin
    return query
    with stored as materialized (  -- fetched by any() and joined afterwards: never an index join against unnest
        select h.* from txmsg.half_message h where h.transaction_id = any(p_id))
    select distinct 'other', s.transaction_id, null::int, null::bigint
      from stored s
      join unnest(p_id, p_n, p_queue, p_producer, p_key, p_tag, p_headers, p_body, p_ordering_key, p_deliver_at,
                  p_deliver_after_us)
           u(id, n, queue, producer, key, tag, headers, body, ordering_key, deliver_at, deliver_after_us)
        on u.id = s.transaction_id and u.n = s.n
     where (u.producer, u.key, u.tag, u.headers, u.body, u.ordering_key, u.deliver_at,
            u.deliver_after_us * interval '1 us')
               is distinct from
           (s.producer, s.key, s.tag, s.headers, s.body, s.ordering_key,
            case when s.deliver_after is null then s.deliver_at end, s.deliver_after)
        or not txmsg.same_topic(u.queue, s.queue);
end $$;

-- The same for plain messages, in any table that they may be in by now.
create function txmsg.other_messages(
    p_segment int, p_previous int, p_memory_open int, p_memory_previous int,
    p_id uuid[], p_n smallint[], p_queue int[], p_key text[], p_tag text[], p_headers bytea[], p_body bytea[],
    p_ordering_key text[]
) returns table (kind text, id uuid, queue int, queue_offset bigint) language plpgsql as $$
#variable_conflict use_column
begin
    return query
    with stored as materialized (
        select m.transaction_id, m.n, m.queue, m.key, m.tag, m.headers, m.body, m.ordering_key
          from txmsg.message m
         where m.segment in (p_segment, p_previous, p_memory_open, p_memory_previous)
           and m.transaction_id = any(p_id)
        union all
        select s.transaction_id, s.n, s.queue, s.key, s.tag, s.headers, s.body, null
          from txmsg.scheduled s where s.transaction_id = any(p_id)
        union all
        select h.transaction_id, h.n, h.queue, h.key, h.tag, h.headers, h.body, h.ordering_key
          from txmsg.half_message h where h.transaction_id = any(p_id) and h.producer = 0)
    select distinct 'other', s.transaction_id, null::int, null::bigint
      from stored s
      join unnest(p_id, p_n, p_queue, p_key, p_tag, p_headers, p_body, p_ordering_key)
           u(id, n, queue, key, tag, headers, body, ordering_key)
        on u.id = s.transaction_id and u.n = s.n
     where (u.key, u.tag, u.headers, u.body, u.ordering_key)
               is distinct from (s.key, s.tag, s.headers, s.body, s.ordering_key)
        or not txmsg.same_topic(u.queue, s.queue);
end $$;

-- Of commits (else of rollbacks) that were not all applied: returns conflict, expired or busy for each that is not
-- final.
create function txmsg.refused_outcomes(
    p_segment int, p_previous int, p_memory_open int, p_memory_previous int, p_id uuid[], p_are_commits boolean
) returns table (kind text, id uuid, queue int, queue_offset bigint) language plpgsql as $$
#variable_conflict use_column
begin
    return query
    select case when o.committed or o.rolled_back then 'conflict'
                when exists (select from txmsg.half_message h where h.transaction_id = u.id) then 'busy'
                else 'expired' end, u.id, null::int, null::bigint
      from unnest(p_id) u(id)
     cross join lateral (
           select exists (select from txmsg.message m
                           where m.segment in (p_segment, p_previous, p_memory_open, p_memory_previous)
                             and m.transaction_id = u.id)
                  or exists (select from txmsg.scheduled s where s.transaction_id = u.id)
                  or exists (select from txmsg.rolled_back r
                              where r.segment in (p_segment, p_previous) and r.transaction_id = u.id and r.committed)
                  or coalesce((select bool_or(h.decided) from txmsg.half_message h where h.transaction_id = u.id), false)
                     as committed,
                  exists (select from txmsg.rolled_back r
                           where r.segment in (p_segment, p_previous) and r.transaction_id = u.id
                             and not r.committed) as rolled_back) o
     where not case when p_are_commits then o.committed else o.rolled_back end;
end $$;

-- Of the ordering keys that a batch touches: returns those that an undecided half still blocks, and the transactions
-- that may enter their queues: those that the batch commits (p_commit), and those that wait since they were committed,
-- up to as many as one batch moves. held_ids: transactions whose keys are free, with more waiting than that.
create function txmsg.free_of_keys(
    p_queues int[], p_keys text[], p_commit uuid[],
    out blocked_queues int[], out blocked_keys text[], out free_ids uuid[], out free_seqs bigint[], out held_ids uuid[]
) language plpgsql as $$
declare
    c_moved_rows_max constant int := 8192;  -- that waited for their key, of all keys in one batch; one of each at least
    c_moved_bytes_max constant int := 8388608;
begin
    with key as materialized (
        select k.queue, k.ordering_key, undecided.order_seq as blocked_at
          from unnest(p_queues, p_keys) k(queue, ordering_key)
          left join lateral (
              select h.order_seq from txmsg.half_message h
               where h.queue = k.queue and h.ordering_key = k.ordering_key and not h.decided
                 and h.transaction_id not in (select unnest(p_commit))
               order by h.order_seq limit 1) undecided on true
    ), before as materialized (  -- what is not blocked: committed now, or waiting since it was
        select k.queue, k.ordering_key, f.order_seq, f.transaction_id, f.decided,
               sum(f.decided::int) over w as moved_rows,
               sum(case when f.decided then f.size_bytes end) over w as moved_bytes
          from key k
         cross join lateral (
              (select h.order_seq, h.transaction_id, false as decided, 0 as size_bytes from txmsg.half_message h
               where h.queue = k.queue and h.ordering_key = k.ordering_key and not h.decided
                 and h.order_seq < coalesce(k.blocked_at, 9223372036854775807)
              offset 0)  -- a fence: not to become a join that reads the whole index
              union all (
              select h.order_seq, h.transaction_id, true, octet_length(h.body) from txmsg.half_message h
               where h.queue = k.queue and h.ordering_key = k.ordering_key and h.decided
                 and h.order_seq < coalesce(k.blocked_at, 9223372036854775807)
               order by h.order_seq limit 1 + c_moved_rows_max / cardinality(p_keys) + 1)) f
        window w as (partition by k.queue, k.ordering_key order by f.order_seq)
    ), judged as materialized (
        select b.*, bool_and(not b.decided or b.moved_rows = 1
                             or b.moved_rows <= 1 + c_moved_rows_max / cardinality(p_keys)
                                and b.moved_bytes <= c_moved_bytes_max / cardinality(p_keys))
                        over (partition by b.queue, b.ordering_key order by b.order_seq) as goes
          from before b
    ), stays as materialized (
        select distinct on (j.queue, j.ordering_key) j.queue, j.ordering_key, j.transaction_id
          from judged j where not j.goes order by j.queue, j.ordering_key, j.order_seq
    ), blocked as (
        select k.queue, k.ordering_key from key k where k.blocked_at is not null
        union select s.queue, s.ordering_key from stays s
    )
    select (select array_agg(b.queue) from blocked b), (select array_agg(b.ordering_key) from blocked b),
           coalesce((select array_agg(j.transaction_id) from judged j where j.goes), '{}'),
           (select array_agg(j.order_seq) from judged j where j.goes),
           (select array_agg(s.transaction_id) from stays s)
      into blocked_queues, blocked_keys, free_ids, free_seqs, held_ids;
end $$;

-- Stores halves and plain messages and applies outcomes, all in one transaction. A column of nulls may be given as
-- '{}'. p_half_first_check_ms: the time from now to a half's first check; 0: the setting of its producer group, else
-- p_first_check. p_decided_by: the party that decided each commit, and then each rollback: 1 the client, 2 a check, 3 a
-- person. '{}': the client all of them. p_end_group: the producer group that each commit, rollback and check must
-- belong to, in this order; null: any; '{}': any for all. A transaction of another group counts as unknown.
--
-- Returns rows only for results that the caller needs:
--   end       queue, queue_offset   the queue reaches at least to before this offset (per queue that grew, or
--                                   that holds what this batch repeats)
--   other     id                    the id was stored before with another content; the first one stands
--   resolved  id                    a late copy of a half whose transaction is decided; it was not stored
--   conflict  id                    the other outcome stands
--   expired   id                    nothing is known of this transaction
--   busy      id                    being decided at this moment by another broker: try again
--   due       queue_offset          messages were stored that are due later, the first at this time (us since 1970)
--   more      id                    its ordering key is free, and more of it can go on than one batch moves: name this
--                                   id in p_check of another one
--
-- Locks, in this order, which all brokers share, so that they cannot deadlock: the rotation lock (7701, shared), the
-- queues touched by outcomes and plain sends (7702), the order of ordered messages by queue (7705), then half rows and
-- index entries in id order. Two batches that end the same transaction name the same queue, so they meet at its lock.
-- Queues share 1,024 locks, because the server's lock table is small (6,400 by default) and a batch may touch thousands
-- of queues: all brokers together never hold more than 1,024, and queues wait for each other without need only where
-- there are more of them.
--
-- Two copies of a plain message may name different queues, while its topic's number of queues is raised. If they
-- come at the same moment, the unique key of the segment refuses the later one, and its repeat finds the first.
--
-- Order. Halves with an ordering key are numbered (order_seq) under the lock of their queue's order, which is held
-- until they are visible: so a session that sees a number sees all lower ones of the queue. A committed message enters
-- its queue when no half of its key with a lower number is undecided; until then its row stays in half_message,
-- decided. Whatever resolves the half that held it back moves it in the same batch, in order. All this happens under
-- the queue's lock.
create function txmsg.apply_batch(
    p_segment int, p_previous int, p_first_check interval,
    p_half_id uuid[], p_half_n smallint[], p_half_queue int[], p_half_producer int[], p_half_key text[],
    p_half_tag text[], p_half_headers bytea[], p_half_body bytea[], p_half_born_at timestamptz[],
    p_half_ordering_key text[], p_half_deliver_at timestamptz[], p_half_deliver_after_us bigint[],
    p_half_first_check_ms int[],
    p_commit uuid[], p_rollback uuid[], p_decided_by smallint[], p_check uuid[], p_end_group text[],
    p_plain_id uuid[], p_plain_n smallint[], p_plain_queue int[], p_plain_key text[],
    p_plain_tag text[], p_plain_headers bytea[], p_plain_body bytea[], p_plain_born_at timestamptz[],
    p_plain_ordering_key text[], p_plain_deliver_at timestamptz[], p_plain_deliver_after_us bigint[]
) returns table (kind text, id uuid, queue int, queue_offset bigint)
language plpgsql as $$
#variable_conflict use_column
declare
    v_ends uuid[] := p_commit || p_rollback || p_check;
    v_commit uuid[] := p_commit;
    v_rollback uuid[] := p_rollback;
    v_by_check uuid[];
    v_by_person uuid[];
    v_seen uuid[];
    v_foreign uuid[];
    v_open boolean;
    v_known boolean;
    v_policies boolean;  -- whether some producer's first check has a time of its own
    v_special boolean;  -- whether some topic is not simply sync, or has a journal
    v_journaled int[];  -- of the queues touched, those with a journal
    v_delayed boolean := cardinality(p_plain_deliver_at) + cardinality(p_plain_deliver_after_us) > 0;
    v_memory int[];  -- of the queues touched, those in memory
    v_memory_open int;  -- null as long as no queue is in memory: then nothing is looked for there
    v_memory_previous int;
    v_queues int[];
    v_bases bigint[];
    v_first_ids int[];  -- the producers whose first check has a time of its own
    v_firsts interval[];
    v_stepped boolean;  -- the clock was set back
    v_ordered boolean := cardinality(p_plain_ordering_key) > 0;
    v_order_seq bigint;
    v_key_queues int[];
    v_keys text[];
    v_free_ids uuid[] := '{}';
    v_free_seqs bigint[];
    v_blocked_queues int[];
    v_blocked_keys text[];
    v_now timestamptz;
    v_deliver_at timestamptz;
    v_known_ids uuid[];
    v_known_ns smallint[];
    v_done uuid[];
    v_held uuid[];
    v_count bigint;
    v_placed_queues int[];
    v_placed_offsets bigint[];
    v_plain_count bigint;
    v_commit_count bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        perform txmsg.require_read_committed();
    end if;
    perform pg_advisory_xact_lock_shared(7701, 0);
    -- One statement: to begin and to end one costs more than what each of these reads. Known queues and producers are
    -- counted by any(), which looks up each value once: half of what a join costs.
    select exists (select from txmsg.segment s where s.id = p_segment and s.state = 'open'),
           (select count(*) from txmsg.queue q where q.id = any(p_half_queue || p_plain_queue))
               = (select count(distinct u.id) from unnest(p_half_queue || p_plain_queue) u(id))
           and (select count(*) from txmsg.producer p where p.id = any(p_half_producer))
               = (select count(distinct u.id) from unnest(p_half_producer) u(id)),
           exists (select from txmsg.check_policy c where c.first_check_s is not null),
           exists (select from txmsg.topic t where t.durability <> 'sync' or t.journal_since is not null)
      into v_open, v_known, v_policies, v_special;
    if not v_open then
        raise exception 'segment % is not open', p_segment using errcode = 'TX001';
    elsif not v_known then
        -- They come from a broker's memory, not from a statement of the batch. A message in a queue that is not there
        -- would reach no consumer, and a half whose producer is not would never be checked.
        raise exception 'a batch names a queue or a producer that is not there' using errcode = 'TX008';
    end if;

    -- ---- locks of queues
    if cardinality(v_ends) > 0 then
        select coalesce(array_agg(distinct h.queue order by h.queue), '{}'),
               array_agg(h.transaction_id) filter (where h.n = 0),
               coalesce(bool_or(h.ordering_key is not null), false) or v_ordered,
               coalesce(bool_or(h.deliver_at is not null), false) or v_delayed
          into v_queues, v_seen, v_ordered, v_delayed
          from txmsg.half_message h where h.transaction_id = any(v_ends);
        if cardinality(v_seen) is distinct from cardinality(v_ends) then
            -- All rows of a transaction become visible at once. Of one that does so only now, some queues may be
            -- locked and others not: it is not decided here, but busy.
            select coalesce(array_agg(c.id), '{}') into v_commit
              from unnest(p_commit) c(id) where c.id in (select unnest(v_seen));
            select coalesce(array_agg(c.id), '{}') into v_rollback
              from unnest(p_rollback) c(id) where c.id in (select unnest(v_seen));
        end if;
    end if;
    if cardinality(p_end_group) > 0 then
        -- After v_seen: what becomes visible later is not decided here, so nothing is decided that was not looked at.
        with stored as materialized (
            select h.transaction_id, h.producer from txmsg.half_message h
             where h.transaction_id = any(v_ends) and h.n = 0)
        select array_agg(e.id) into v_foreign
          from unnest(v_ends, p_end_group) e(id, group_name)
          join stored s on s.transaction_id = e.id
          join txmsg.producer p on p.id = s.producer
         where p.group_name <> e.group_name;
        if v_foreign is not null then
            return query select 'expired', unnest(v_foreign), null::int, null::bigint;
            if cardinality(p_decided_by) > 0 then
                p_decided_by := array(
                    select e.by from unnest(p_commit || p_rollback, p_decided_by) with ordinality e(id, by, place)
                     where e.id <> all (v_foreign) order by e.place);
            end if;
            p_commit := array(select c from unnest(p_commit) c where c <> all (v_foreign));
            p_rollback := array(select c from unnest(p_rollback) c where c <> all (v_foreign));
            p_check := array(select c from unnest(p_check) c where c <> all (v_foreign));
            v_commit := array(select c from unnest(v_commit) c where c <> all (v_foreign));
            v_rollback := array(select c from unnest(v_rollback) c where c <> all (v_foreign));
            v_ends := p_commit || p_rollback || p_check;
        end if;
    end if;
    if cardinality(v_ends) > 0 or cardinality(p_plain_id) > 0 then
        if cardinality(p_plain_id) > 0 then
            select array_agg(distinct q order by q) into v_queues from unnest(v_queues || p_plain_queue) q;
        end if;
        perform pg_advisory_xact_lock(7702, l.lock)
           from (select distinct q % 1024 as lock from unnest(v_queues) q order by 1) l;
    end if;
    if cardinality(p_half_ordering_key) > 0 or cardinality(p_plain_ordering_key) > 0 then
        perform pg_advisory_xact_lock(7705, l.lock)
           from (select distinct u.queue % 1024 as lock from (
                     select * from unnest(p_half_queue, p_half_ordering_key)
                     union all select * from unnest(p_plain_queue, p_plain_ordering_key)) u(queue, ordering_key)
                  where u.ordering_key is not null order by 1) l;
        v_order_seq := nextval('txmsg.half_order') << 20;  -- the place in the batch is added
    end if;

    -- Looked at once more under the locks of queues, which a topic's change to memory takes. Halves alone take none.
    if v_special or v_queues is not null then
        v_memory := txmsg.set_level(v_queues || p_half_queue);
    end if;
    if v_special then
        v_journaled := txmsg.journaled(v_queues || p_half_queue);
    end if;
    v_memory_open := case when v_memory is not null then -p_segment end;
    v_memory_previous := case when v_memory is not null then -p_previous end;

    if v_ordered then  -- before any row of them goes
        select array_agg(k.queue), array_agg(k.ordering_key) into v_key_queues, v_keys from (
            select h.queue, h.ordering_key from txmsg.half_message h
             where h.transaction_id = any(v_ends) and h.ordering_key is not null and h.queue = any(v_queues)
            union
            select u.queue, u.ordering_key from unnest(p_plain_queue, p_plain_ordering_key) u(queue, ordering_key)
             where u.ordering_key is not null) k;
    end if;

    -- ---- halves
    if cardinality(p_half_id) > 0 then
        if v_policies then
            select array_agg(p.id), array_agg(make_interval(secs => c.first_check_s)) into v_first_ids, v_firsts
              from txmsg.check_policy c join txmsg.producer p on p.group_name = c.group_name
             where c.first_check_s is not null;
        end if;
        insert into txmsg.half_message as h
            (transaction_id, n, queue, producer, key, tag, headers, body, born_at, next_check_at, ordering_key,
             order_seq, deliver_at, deliver_after)
        select u.id, u.n, u.queue, u.producer, u.key, u.tag, u.headers, u.body, u.born_at,
               case when u.n = 0
                    then now() + coalesce(make_interval(secs => nullif(u.first_check_ms, 0) / 1000.0),
                                          v_firsts[array_position(v_first_ids, u.producer)], p_first_check) end,
               u.ordering_key,
               case when u.ordering_key is not null then v_order_seq + u.place end,
               coalesce(u.deliver_at, now() + u.deliver_after_us * interval '1 us'),
               u.deliver_after_us * interval '1 us'
          from unnest(p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key, p_half_tag, p_half_headers,
                      p_half_body, p_half_born_at, p_half_ordering_key, p_half_deliver_at, p_half_deliver_after_us,
                      p_half_first_check_ms) with ordinality
               as u(id, n, queue, producer, key, tag, headers, body, born_at, ordering_key, deliver_at,
                    deliver_after_us, first_check_ms, place)
         order by u.id, u.n, u.place  -- of a half that is there twice the first, so that one request keeps its order
        on conflict do nothing;
        get diagnostics v_count = row_count;
        if v_count < cardinality(p_half_id) then
            return query select * from txmsg.other_halves(
                p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key, p_half_tag, p_half_headers, p_half_body,
                p_half_ordering_key, p_half_deliver_at, p_half_deliver_after_us);
            select array_agg(distinct h.transaction_id) filter (where h.decided) into v_held
              from txmsg.half_message h where h.transaction_id = any(p_half_id);
        end if;
        -- A second statement on purpose: under READ COMMITTED it sees an outcome that became visible while the
        -- insert waited. A late copy of a half must not come back to life.
        select array_agg(distinct d.transaction_id) into v_done from (
            select m.transaction_id from txmsg.message m
             where m.segment in (p_segment, p_previous, v_memory_open, v_memory_previous)
               and m.transaction_id = any(p_half_id)
            union all
            select r.transaction_id from txmsg.rolled_back r
             where r.segment in (p_segment, p_previous) and r.transaction_id = any(p_half_id)
            union all
            select s.transaction_id from txmsg.scheduled s where s.transaction_id = any(p_half_id)
            union all
            select unnest(v_held)) d;
        if v_done is not null then
            delete from txmsg.half_message h where h.transaction_id = any(v_done) and not h.decided;
            return query select 'resolved', unnest(v_done), null::int, null::bigint;
        end if;
        if v_journaled is not null then
            perform txmsg.journal_halves(p_segment, v_journaled, p_half_id);
        end if;
    end if;

    if cardinality(p_decided_by) > 0 then
        select array_agg(e.id) filter (where e.by = 2), array_agg(e.id) filter (where e.by = 3)
          into v_by_check, v_by_person from unnest(p_commit || p_rollback, p_decided_by) e(id, by);
    end if;
    if v_journaled is not null and cardinality(v_commit || v_rollback) > 0 then
        perform txmsg.journal_outcomes(p_segment, v_journaled, v_commit, v_rollback, v_by_check, v_by_person);
    end if;

    -- ---- rollbacks: before the commits, which may have waited for them
    if cardinality(p_rollback) > 0 then
        with gone as (
            delete from txmsg.half_message h where h.transaction_id = any(v_rollback) and not h.decided
            returning h.transaction_id, h.n, h.queue, h.producer, h.stored_at
        )
        insert into txmsg.rolled_back (segment, transaction_id, decided_by, queue, producer, half_stored_at)
        select p_segment, g.transaction_id,
               case when g.transaction_id in (select unnest(v_by_check)) then 2
                    when g.transaction_id in (select unnest(v_by_person)) then 3
                    else 1 end, g.queue, g.producer, g.stored_at
          from gone g where g.n = 0 order by 2  -- an undecided transaction is there whole
        on conflict do nothing;
        get diagnostics v_count = row_count;
        if v_count < cardinality(p_rollback) then
            return query select * from txmsg.refused_outcomes(
                p_segment, p_previous, v_memory_open, v_memory_previous, p_rollback, false);
        end if;
    end if;

    -- ---- which ordering keys are free, and what of them goes on
    if v_keys is not null then
        select f.blocked_queues, f.blocked_keys, f.free_ids, f.free_seqs, f.held_ids
          into v_blocked_queues, v_blocked_keys, v_free_ids, v_free_seqs, v_held
          from txmsg.free_of_keys(v_key_queues, v_keys, v_commit) f;
        return query select 'more', unnest(v_held), null::int, null::bigint;
    end if;

    -- ---- commits and plain messages
    if cardinality(p_commit) > 0 or cardinality(p_plain_id) > 0 or cardinality(v_free_ids) > 0 then
        if cardinality(p_plain_id) > 0 then
            -- A plain message under the id of a transaction would be delivered whatever became of that.
            select array_agg(d.id) filter (where d.known), array_agg(d.n) filter (where d.known),
                   coalesce(array_agg(distinct d.id) filter (where not d.known), '{}')
              into v_known_ids, v_known_ns, v_done from (
                select m.transaction_id as id, m.n, true as known from txmsg.message m
                 where m.segment in (p_segment, p_previous, v_memory_open, v_memory_previous)
                   and m.transaction_id = any(p_plain_id)
                union all
                select s.transaction_id, s.n, true from txmsg.scheduled s where s.transaction_id = any(p_plain_id)
                union all
                select h.transaction_id, h.n, h.producer = 0 from txmsg.half_message h
                 where h.transaction_id = any(p_plain_id)
                union all
                select r.transaction_id, null, false from txmsg.rolled_back r
                 where r.segment in (p_segment, p_previous) and r.transaction_id = any(p_plain_id)) d;
            return query select 'other', unnest(v_done), null::int, null::bigint;
        end if;
        v_now := clock_timestamp();  -- under the locks: so it only rises along each queue, while the clock does
        select array_agg(case when q = any(v_memory) then txmsg.memory_end(p_segment, q) else coalesce(
                   l.queue_offset + 1,
                   (select b.base from txmsg.segment_base b where b.segment = p_segment and b.queue = q),
                   0) end order by q),
               bool_or(l.stored_at > v_now)
          into v_bases, v_stepped
          from unnest(v_queues) q
          left join lateral (
               select m.queue_offset, m.stored_at from txmsg.message m
                where m.segment = p_segment and m.queue = q order by m.queue_offset desc limit 1) l on true;
        if v_stepped or v_memory is not null then
            insert into txmsg.clock_step (segment, queue, queue_offset)
            select p_segment, u.queue, u.base from unnest(v_queues, v_bases) u(queue, base)
             where v_now < (select m.stored_at from txmsg.message m
                             where m.segment in (p_segment, v_memory_open) and m.queue = u.queue
                               and m.queue_offset = u.base - 1)
            on conflict do nothing;
        end if;
        -- To begin a statement costs more than to move one message. So what is neither ordered nor delayed, which is
        -- nearly all, has statements that are small.
        if not (v_ordered or v_delayed) and cardinality(p_plain_id) = 0 and cardinality(p_decided_by) = 0 then
            with gone as (
                delete from txmsg.half_message h where h.transaction_id = any(v_commit)
                returning h.queue, h.seq, h.transaction_id, h.n, h.key, h.tag, h.headers, h.body, h.born_at,
                          h.stored_at
            ), placed as (
                insert into txmsg.message as m
                    (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at, stored_at,
                     half_stored_at, decided_by)
                select case when g.queue = any(v_memory) then -p_segment else p_segment end, g.queue,
                       v_bases[width_bucket(g.queue, v_queues)]
                           + row_number() over (partition by g.queue order by g.seq) - 1,
                       g.transaction_id, g.n, g.key, g.tag, g.headers, g.body, g.born_at, v_now, g.stored_at, 1
                  from gone g
                returning m.queue, m.queue_offset, m.n
            )
            select array_agg(p.queue), array_agg(p.queue_offset), 0, count(*) filter (where p.n = 0)
              into v_placed_queues, v_placed_offsets, v_plain_count, v_commit_count from placed p;
        elsif not (v_ordered or v_delayed) and cardinality(p_commit) = 0 and v_known_ids is null and v_done = '{}' then
            with fresh as (
                select distinct on (u.id, u.n) u.*
                  from unnest(p_plain_id, p_plain_n, p_plain_queue, p_plain_key, p_plain_tag, p_plain_headers,
                              p_plain_body, p_plain_born_at) with ordinality
                       as u(id, n, queue, key, tag, headers, body, born_at, place)
                 order by u.id, u.n, u.place
            ), placed as (
                insert into txmsg.message as m
                    (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at, stored_at)
                select case when f.queue = any(v_memory) then -p_segment else p_segment end, f.queue,
                       v_bases[width_bucket(f.queue, v_queues)]
                           + row_number() over (partition by f.queue order by f.place) - 1,
                       f.id, f.n, f.key, f.tag, f.headers, f.body, f.born_at, v_now
                  from fresh f
                returning m.queue, m.queue_offset
            )
            select array_agg(p.queue), array_agg(p.queue_offset), count(*), 0
              into v_placed_queues, v_placed_offsets, v_plain_count, v_commit_count from placed p;
        else
            with gone as (
                delete from txmsg.half_message h
                 where h.transaction_id = any(v_commit || v_free_ids)
                   and (h.ordering_key is null or h.order_seq in (select unnest(v_free_seqs)))
                returning h.queue, h.order_seq, h.seq, h.transaction_id, h.n, h.key, h.tag, h.headers, h.body,
                          h.born_at, h.ordering_key, h.deliver_at, h.deliver_after,
                          case when h.producer <> 0 then h.stored_at end as half_stored_at,
                          h.decided, case when h.decided then h.decided_by
                                          when h.transaction_id in (select unnest(v_by_check)) then 2
                                          when h.transaction_id in (select unnest(v_by_person)) then 3
                                          else 1 end::smallint as decided_by
            ), fresh as (
                select distinct on (u.id, u.n) u.queue, null::bigint as order_seq, u.place as seq, u.id, u.n, u.key,
                       u.tag, u.headers, u.body, u.born_at, u.ordering_key,
                       coalesce(u.deliver_at, v_now + u.deliver_after_us * interval '1 us') as deliver_at,
                       u.deliver_after_us * interval '1 us' as deliver_after,
                       u.ordering_key is not null and (u.queue, u.ordering_key) in (
                           select b.queue, b.ordering_key
                             from unnest(v_blocked_queues, v_blocked_keys) b(queue, ordering_key)) as waits
                  from unnest(p_plain_id, p_plain_n, p_plain_queue, p_plain_key, p_plain_tag, p_plain_headers,
                              p_plain_body, p_plain_born_at, p_plain_ordering_key, p_plain_deliver_at,
                              p_plain_deliver_after_us) with ordinality
                       as u(id, n, queue, key, tag, headers, body, born_at, ordering_key, deliver_at,
                            deliver_after_us, place)
                 where (u.id, u.n) not in (select k.id, k.n from unnest(v_known_ids, v_known_ns) k(id, n))
                   and u.id <> all (v_done)
                 order by u.id, u.n, u.place
            ), incoming as (
                select 0 as lane, g.queue, g.order_seq, g.seq, g.transaction_id, g.n, g.key, g.tag, g.headers, g.body,
                       g.born_at, g.ordering_key, g.half_stored_at, g.decided_by
                  from gone g where (g.deliver_at > v_now) is not true
                union all
                select 1, f.queue, f.order_seq, f.seq, f.id, f.n, f.key, f.tag, f.headers, f.body,
                       f.born_at, f.ordering_key, null, 0::smallint
                  from fresh f where not f.waits and (f.deliver_at > v_now) is not true
            ), placed as (
                insert into txmsg.message as m
                    (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at, stored_at,
                     ordering_key, half_stored_at, decided_by)
                select case when i.queue = any(v_memory) then -p_segment else p_segment end, i.queue,
                       v_bases[width_bucket(i.queue, v_queues)]  -- its place, found in the middle: v_queues is sorted
                           + row_number() over (partition by i.queue order by i.lane, i.order_seq, i.seq) - 1,
                       i.transaction_id, i.n, i.key, i.tag, i.headers, i.body, i.born_at, v_now,
                       i.ordering_key, i.half_stored_at, i.decided_by
                  from incoming i
                returning m.queue, m.queue_offset
            ), later as (
                insert into txmsg.scheduled as s
                    (transaction_id, n, deliver_at, deliver_after, queue, key, tag, headers, body, born_at,
                     half_stored_at, decided_by)
                select g.transaction_id, g.n, g.deliver_at, g.deliver_after, g.queue, g.key, g.tag, g.headers, g.body,
                       g.born_at, g.half_stored_at, g.decided_by
                  from gone g where g.deliver_at > v_now
                union all
                select f.id, f.n, f.deliver_at, f.deliver_after, f.queue, f.key, f.tag, f.headers, f.body, f.born_at,
                       null, 0
                  from fresh f where f.deliver_at > v_now
                order by 1, 2
                on conflict do nothing
                returning s.deliver_at
            ), waiting as (
                insert into txmsg.half_message
                    (transaction_id, n, queue, producer, key, tag, headers, body, born_at, ordering_key, order_seq,
                     decided, decided_by)
                select f.id, f.n, f.queue, 0, f.key, f.tag, f.headers, f.body, f.born_at, f.ordering_key,
                       v_order_seq + cardinality(p_half_id) + f.seq, true, 0
                  from fresh f where f.waits
                 order by 1, 2
                on conflict do nothing
            )
            select array_agg(p.queue), array_agg(p.queue_offset), (select count(*) from fresh),
                   (select count(*) from gone g where g.n = 0 and not g.decided),
                   (select min(l.deliver_at) from later l)
              into v_placed_queues, v_placed_offsets, v_plain_count, v_commit_count, v_deliver_at from placed p;
        end if;
        if cardinality(v_placed_queues) = 1 then
            kind := 'end';
            queue := v_placed_queues[1];
            queue_offset := v_placed_offsets[1] + 1;
            return next;
        else
            return query
                select 'end', null::uuid, p.queue, max(p.queue_offset) + 1
                  from unnest(v_placed_queues, v_placed_offsets) p(queue, queue_offset) group by p.queue;
        end if;
        if v_deliver_at is not null then
            return query select 'due', null::uuid, null::int, (extract(epoch from v_deliver_at) * 1000000)::bigint;
        end if;
        if v_blocked_keys is not null then  -- what is committed, and stays until its key is free
            with held as (
                update txmsg.half_message h
                   set decided = true, next_check_at = null, parked_reason = null,
                       decided_by = case when h.decided then h.decided_by
                                         when h.transaction_id in (select unnest(v_by_check)) then 2
                                         when h.transaction_id in (select unnest(v_by_person)) then 3
                                         else 1 end
                 where h.transaction_id = any(v_commit) and h.ordering_key is not null
                returning h.n
            )
            select v_commit_count + count(*) into v_commit_count from held h where h.n = 0;
        end if;
        if v_commit_count < cardinality(p_commit) or v_plain_count < cardinality(p_plain_id) then
            -- Repeats, or outcomes of what is not there.
            return query select * from txmsg.other_messages(
                p_segment, p_previous, v_memory_open, v_memory_previous, p_plain_id, p_plain_n, p_plain_queue,
                p_plain_key, p_plain_tag, p_plain_headers, p_plain_body, p_plain_ordering_key);
            -- What is answered OK once more is to be as safe as what it repeats.
            perform txmsg.set_level(v_queues || p_half_queue || array(
                select m.queue from txmsg.message m
                 where m.segment in (p_segment, p_previous, v_memory_open, v_memory_previous)
                   and m.transaction_id = any(p_commit)
                union
                select s.queue from txmsg.scheduled s where s.transaction_id = any(p_commit)));
            return query
            select 'end', null::uuid, m.queue, max(m.queue_offset) + 1 from txmsg.message m
             where m.segment in (p_segment, p_previous, v_memory_open, v_memory_previous)
               and m.transaction_id = any(p_commit || p_plain_id)
             group by m.queue;
            return query select * from txmsg.refused_outcomes(
                p_segment, p_previous, v_memory_open, v_memory_previous, p_commit, true);
        end if;
    end if;

    if cardinality(p_check) > 0 then
        -- A little ahead, so that the check loop's window cannot pass it before this transaction is visible.
        update txmsg.half_message h set next_check_at = least(h.next_check_at, now() + interval '200 milliseconds')
         where h.transaction_id = any(p_check) and h.queue = any(v_queues) and h.next_check_at is not null;
    end if;
end $$;

-- What brokers call: apply_batch, committed before the answer leaves. The server sends rows while a statement still
-- runs; to a broker that is paused or cut off it would wait, all locks held, as soon as the answer is larger than the
-- buffers between them (ran: 4,600 rows).
--
-- p_incarnation: that of the caller's memory, which must be current (TX007); null: any. standby_names:
-- synchronous_standby_names as the commit has found it, if the batch waits for standbys (set_level), else null.
-- flushed_at: what they must have on disk to have the batch; the commit is before it.
create procedure txmsg.write_batch(
    p_incarnation uuid, p_segment int, p_previous int, p_first_check interval,
    p_half_id uuid[], p_half_n smallint[], p_half_queue int[], p_half_producer int[], p_half_key text[],
    p_half_tag text[], p_half_headers bytea[], p_half_body bytea[], p_half_born_at timestamptz[],
    p_half_ordering_key text[], p_half_deliver_at timestamptz[], p_half_deliver_after_us bigint[],
    p_half_first_check_ms int[],
    p_commit uuid[], p_rollback uuid[], p_decided_by smallint[], p_check uuid[], p_end_group text[],
    p_plain_id uuid[], p_plain_n smallint[], p_plain_queue int[], p_plain_key text[],
    p_plain_tag text[], p_plain_headers bytea[], p_plain_body bytea[], p_plain_born_at timestamptz[],
    p_plain_ordering_key text[], p_plain_deliver_at timestamptz[], p_plain_deliver_after_us bigint[],
    out kinds text[], out ids uuid[], out queues int[], out queue_offsets bigint[],
    out standby_names text, out flushed_at text
) language plpgsql as $$
begin
    if p_incarnation is not null then
        perform txmsg.require_incarnation(p_incarnation);
    end if;
    select array_agg(r.kind), array_agg(r.id), array_agg(r.queue), array_agg(r.queue_offset)
      into kinds, ids, queues, queue_offsets
      from txmsg.apply_batch(
        p_segment, p_previous, p_first_check, p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key,
        p_half_tag, p_half_headers, p_half_body, p_half_born_at, p_half_ordering_key, p_half_deliver_at,
        p_half_deliver_after_us, p_half_first_check_ms,
        p_commit, p_rollback, p_decided_by, p_check, p_end_group, p_plain_id, p_plain_n, p_plain_queue, p_plain_key,
        p_plain_tag, p_plain_headers, p_plain_body, p_plain_born_at, p_plain_ordering_key, p_plain_deliver_at,
        p_plain_deliver_after_us) r;
    -- A session reads changed settings between statements only: this one is what the wait begins with.
    if current_setting('synchronous_commit') = 'on' then
        standby_names := current_setting('synchronous_standby_names');
    end if;
    commit;
    if standby_names is not null then
        flushed_at := pg_current_wal_flush_lsn();
    end if;
end $$;
