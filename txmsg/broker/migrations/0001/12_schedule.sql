-- Delayed messages, released and recalled.

-- Moves due messages into their queues: the first p_rows_max by deliver_at from p_since on (null: from the first), at
-- most p_size_bytes_max together. Several brokers may call it at once: each moves other rows.
--
-- ends: per queue that grew, the offset after its last message. more: further messages are due. through: all messages
-- that were due before then, and visible, are moved or being moved by another broker; the next p_since. Deleted rows
-- stay in the index until they are vacuumed, perhaps long, so it is not read from its beginning each time.
--
-- Locks as a batch does. Rows are only locked before the queues are, and deleted after: so a batch that meets them in a
-- repeat never waits for one that waits for it.
create procedure txmsg.release_due(
    p_segment int, p_since timestamptz, p_rows_max int, p_size_bytes_max bigint,
    out queues int[], out ends bigint[], out released int, out more boolean, out through timestamptz
) language plpgsql as $$
declare
    v_now timestamptz := clock_timestamp();
    v_found int;
    v_ids uuid[];
    v_ns smallint[];
    v_queues int[];
    v_memory int[];
    v_bases bigint[];
begin
    perform txmsg.require_read_committed();
    perform set_config('enable_seqscan', 'off', true);  -- the table looks empty to statistics at many moments
    perform pg_advisory_xact_lock_shared(7701, 0);
    if not exists (select from txmsg.segment s where s.id = p_segment and s.state = 'open') then
        raise exception 'segment % is not open', p_segment using errcode = 'TX001';
    end if;
    with due as materialized (
        select s.transaction_id, s.n, s.queue, s.deliver_at, octet_length(s.body) as size_bytes from txmsg.scheduled s
         where s.deliver_at >= coalesce(p_since, '-infinity') and s.deliver_at <= v_now
         order by s.deliver_at limit p_rows_max
           for update skip locked
    ), sized as (
        select d.*, row_number() over w as nth, sum(d.size_bytes) over w as through_bytes
          from due d window w as (order by d.deliver_at, d.transaction_id, d.n)
    ), taken as (
        select s.* from sized s where s.nth = 1 or s.through_bytes <= p_size_bytes_max
    )
    select array_agg(t.transaction_id), array_agg(t.n), array_agg(distinct t.queue order by t.queue), count(*),
           (select count(*) from due), max(t.deliver_at)
      into v_ids, v_ns, v_queues, released, v_found, through from taken t;
    more := released < v_found or v_found = p_rows_max;
    if not more then
        through := v_now;
    end if;
    if released > 0 then
        perform pg_advisory_xact_lock(7702, l.lock)
           from (select distinct q % 1024 as lock from unnest(v_queues) q order by 1) l;
        select array_agg(q.id) into v_memory from txmsg.queue q join txmsg.topic t on t.id = q.topic_id
         where t.durability = 'memory' and q.id = any(v_queues);
        select array_agg(case when q = any(v_memory) then txmsg.memory_end(p_segment, q) else coalesce(
                   (select m.queue_offset + 1 from txmsg.message m
                     where m.segment = p_segment and m.queue = q order by m.queue_offset desc limit 1),
                   (select b.base from txmsg.segment_base b where b.segment = p_segment and b.queue = q),
                   0) end order by q)
          into v_bases from unnest(v_queues) q;
        v_now := clock_timestamp();  -- as in apply_batch
        insert into txmsg.clock_step (segment, queue, queue_offset)
        select p_segment, u.queue, u.base from unnest(v_queues, v_bases) u(queue, base)
         where v_now < (select m.stored_at from txmsg.message m
                         where m.segment in (p_segment, -p_segment) and m.queue = u.queue
                           and m.queue_offset = u.base - 1)
        on conflict do nothing;
        with gone as (
            delete from txmsg.scheduled s
             where s.transaction_id = any(v_ids)
               and ((s.transaction_id, s.n) in (select t.id, t.n from unnest(v_ids, v_ns) t(id, n))) is true
            returning s.*
        ), placed as (
            insert into txmsg.message as m
                (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at, stored_at,
                 half_stored_at, decided_by)
            select case when g.queue = any(v_memory) then -p_segment else p_segment end, g.queue,
                   v_bases[width_bucket(g.queue, v_queues)]
                       + row_number() over (partition by g.queue order by g.deliver_at, g.transaction_id, g.n) - 1,
                   g.transaction_id, g.n, g.key, g.tag, g.headers, g.body, g.born_at, v_now, g.half_stored_at,
                   g.decided_by
              from gone g
            returning m.queue, m.queue_offset
        )
        select array_agg(p.queue), array_agg(p.queue_end) into queues, ends from (
            select p.queue, max(p.queue_offset) + 1 as queue_end from placed p group by p.queue) p;
    end if;
    commit;
end $$;

-- Recalls messages that are not due yet. Returns one answer for each that is named, in their order:
--   recalled   it will not be delivered: taken back now or before, or its transaction was rolled back
--   entered    it has entered its queue: too late
--   undecided  its transaction is not decided yet: roll that back
--   unknown    nothing is known of it
-- A transaction without any other trace is remembered in rolled_back as committed: a late copy is not stored again, and
-- its outcome stays the same.
create procedure txmsg.recall(
    p_segment int, p_previous int, p_id uuid[], p_n smallint[], out kinds text[]
) language plpgsql as $$
declare
    v_gone_ids uuid[];
    v_gone_ns smallint[];
    v_gone_queues int[];
    v_gone_since timestamptz[];
begin
    perform txmsg.require_read_committed();
    perform set_config('enable_seqscan', 'off', true);
    perform pg_advisory_xact_lock_shared(7701, 0);
    if not exists (select from txmsg.segment s where s.id = p_segment and s.state = 'open') then
        raise exception 'segment % is not open', p_segment using errcode = 'TX001';
    end if;
    with gone as (
        delete from txmsg.scheduled s
         where s.transaction_id = any(p_id)
           and ((s.transaction_id, s.n) in (select u.id, u.n from unnest(p_id, p_n) u(id, n))) is true
        returning s.transaction_id, s.n, s.queue, s.half_stored_at
    )
    select array_agg(g.transaction_id), array_agg(g.n), array_agg(g.queue), array_agg(g.half_stored_at)
      into v_gone_ids, v_gone_ns, v_gone_queues, v_gone_since from gone g;
    insert into txmsg.rolled_back (segment, transaction_id, committed, queue, half_stored_at)
    select distinct on (g.id) p_segment, g.id, true, g.queue, g.since
      from unnest(v_gone_ids, v_gone_ns, v_gone_queues, v_gone_since) g(id, n, queue, since)
     where not exists (select from txmsg.message m
                        where m.segment in (p_segment, p_previous, -p_segment, -p_previous) and m.transaction_id = g.id)
       and not exists (select from txmsg.scheduled s where s.transaction_id = g.id)
       and not exists (select from txmsg.half_message h where h.transaction_id = g.id)
     order by g.id, g.n
    on conflict do nothing;
    select array_agg(case
               when (u.id, u.n) in (select g.id, g.n from unnest(v_gone_ids, v_gone_ns) g(id, n)) then 'recalled'
               when exists (select from txmsg.message m
                             where m.segment in (p_segment, p_previous, -p_segment, -p_previous)
                               and m.transaction_id = u.id and m.n = u.n)
                 or (select h.decided from txmsg.half_message h where h.transaction_id = u.id and h.n = u.n)
                    then 'entered'
               when exists (select from txmsg.half_message h where h.transaction_id = u.id and not h.decided)
                    then 'undecided'
               when exists (select from txmsg.rolled_back r
                             where r.segment in (p_segment, p_previous) and r.transaction_id = u.id)
                 or exists (select from txmsg.scheduled s where s.transaction_id = u.id)
                 or exists (select from txmsg.message m
                             where m.segment in (p_segment, p_previous, -p_segment, -p_previous)
                               and m.transaction_id = u.id)
                 or exists (select from txmsg.half_message h where h.transaction_id = u.id) then 'recalled'
               else 'unknown' end order by u.place)
      into kinds from unnest(p_id, p_n) with ordinality u(id, n, place);
    commit;
end $$;
