-- The Notify database, revision 0001: functions. A batch is one call of one procedure in autocommit, so that
-- no lock of a batch is ever held while waiting for a client. Advisory lock classes: 7701 rotation, 7702 queues,
-- 7703 making segments, 7704 upgrading (taken by migrate.py).

-- What must see all that was committed before it got its lock cannot work on a snapshot taken earlier.
create function txmsg.require_read_committed_1() returns void language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'txmsg needs read committed, and this session is %: set default_transaction_isolation',
            current_setting('transaction_isolation') using errcode = 'TX002';
    end if;
end $$;

-- Makes the next segment ahead of its use. Plain tables attached with a matching CHECK: neither step waits for
-- readers or makes senders wait, as CREATE TABLE ... PARTITION OF would.
create function txmsg.add_segment_1() returns int language plpgsql as $$
declare
    v_id int;
    v_root text;
begin
    perform pg_advisory_xact_lock(7703, 0);  -- one maker at a time
    select id into v_id from txmsg.segment where state = 'ahead';
    if found then
        return v_id;
    end if;
    select coalesce(max(id), 0) + 1 into v_id from txmsg.segment;
    foreach v_root in array array['message', 'rolled_back'] loop
        execute format('create table txmsg.%1$I (like txmsg.%2$I including all)', v_root || '_' || v_id, v_root);
        execute format('alter table txmsg.%1$I add constraint of_segment check (segment = %2$s)',
                       v_root || '_' || v_id, v_id);
        execute format('alter table txmsg.%2$I attach partition txmsg.%1$I for values in (%3$s)',
                       v_root || '_' || v_id, v_root, v_id);
    end loop;
    insert into txmsg.segment (id, state) values (v_id, 'ahead');
    return v_id;
end $$;

-- Closes segment p_from and opens the one made ahead. Returns the open segment, whoever opened it.
create function txmsg.rotate_1(p_from int) returns int language plpgsql as $$
declare
    v_open int;
    v_next int;
    v_at timestamptz;
begin
    perform txmsg.require_read_committed_1();
    perform pg_advisory_xact_lock(7701, 0);  -- exclusive: waits for the batches under way, which are short
    select id into v_open from txmsg.segment where state = 'open';
    if v_open is distinct from p_from then
        return v_open;
    end if;
    select id into v_next from txmsg.segment where state = 'ahead';
    if not found then
        return v_open;  -- another broker opened it and has not made the next one yet: the next look will rotate
    end if;
    v_at := clock_timestamp();  -- not now(), which is when the wait began: outcomes are remembered from here on
    update txmsg.segment set state = 'closed', closed_at = v_at where id = p_from;
    update txmsg.segment set state = 'open', opened_at = v_at where id = v_next;
    insert into txmsg.segment_base (segment, queue, base)
    select v_next, q.id, coalesce(
        (select m.queue_offset + 1 from txmsg.message m
          where m.segment = p_from and m.queue = q.id order by m.queue_offset desc limit 1),
        (select b.base from txmsg.segment_base b where b.segment = p_from and b.queue = q.id),
        0)
      from txmsg.queue q;
    return v_next;
end $$;

-- Whether two queues are of one topic. They differ for a repeat when the topic has got more queues meanwhile.
create function txmsg.same_topic_1(p_queue int, p_other int) returns boolean language sql stable as $$
    select p_queue = p_other or (select count(distinct q.topic_id) from txmsg.queue q where q.id in (p_queue, p_other)) < 2
$$;

-- Stores halves and plain messages and applies outcomes, all in one transaction.
--
-- Returns rows only for what is worth saying:
--   end       queue, queue_offset   the queue reaches at least to before this offset (per queue that grew, or
--                                   that holds what this batch repeats)
--   other     id                    the id was stored before with another content; the first one stands
--   resolved  id                    a late copy of a half whose transaction is decided; it was not stored
--   conflict  id                    the other outcome stands
--   expired   id                    nothing is known of this transaction
--   busy      id                    being decided at this moment by another broker: try again
--
-- Locks, in this order, which all brokers share, so that they cannot deadlock: the rotation lock (shared), the
-- queues touched by outcomes and plain sends, then half rows and index entries in id order. Two batches that end
-- the same transaction name the same queue, so they meet at its lock. Queues share 1,024 locks, for the server's
-- lock table is small (6,400 by default) and a batch may touch thousands of queues: so all brokers together never
-- hold more than 1,024, and queues wait for each other without need only where there are more of them.
--
-- Two copies of a plain message may name different queues, while its topic's number of queues is raised. If they
-- come at the same moment, the unique key of the segment refuses the later one, and its repeat finds the first.
create function txmsg.apply_batch_1(
    p_segment int, p_previous int, p_first_check interval,
    p_half_id uuid[], p_half_n smallint[], p_half_queue int[], p_half_producer int[], p_half_key text[],
    p_half_tag text[], p_half_headers bytea[], p_half_body bytea[], p_half_born_at timestamptz[],
    p_commit uuid[], p_rollback uuid[], p_check uuid[],
    p_plain_id uuid[], p_plain_n smallint[], p_plain_queue int[], p_plain_key text[],
    p_plain_tag text[], p_plain_headers bytea[], p_plain_body bytea[], p_plain_born_at timestamptz[]
) returns table (kind text, id uuid, queue int, queue_offset bigint)
language plpgsql as $$
#variable_conflict use_column
declare
    v_ends uuid[] := p_commit || p_rollback || p_check;
    v_queues int[];
    v_bases bigint[];
    v_known_ids uuid[];
    v_known_ns smallint[];
    v_done uuid[];
    v_count bigint;
    v_placed_queues int[];
    v_placed_offsets bigint[];
    v_plain_count bigint;
    v_commit_count bigint;
begin
    perform txmsg.require_read_committed_1();
    perform pg_advisory_xact_lock_shared(7701, 0);
    if not exists (select from txmsg.segment s where s.id = p_segment and s.state = 'open') then
        raise exception 'segment % is not open', p_segment using errcode = 'TX001';
    end if;

    if cardinality(v_ends) > 0 or cardinality(p_plain_id) > 0 then
        select coalesce(array_agg(q order by q), '{}') into v_queues from (
            select h.queue as q from txmsg.half_message h where h.transaction_id = any(v_ends)
            union select unnest(p_plain_queue)) touched;
        perform pg_advisory_xact_lock(7702, l.lock)
           from (select distinct q % 1024 as lock from unnest(v_queues) q order by 1) l;
    end if;

    if cardinality(p_half_id) > 0 then
        insert into txmsg.half_message as h
            (transaction_id, n, queue, producer, key, tag, headers, body, born_at, next_check_at)
        select u.id, u.n, u.queue, u.producer, u.key, u.tag, u.headers, u.body, u.born_at,
               case when u.n = 0 then now() + p_first_check end
          from unnest(p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key, p_half_tag, p_half_headers,
                      p_half_body, p_half_born_at)
               as u(id, n, queue, producer, key, tag, headers, body, born_at)
         order by u.id, u.n
        on conflict do nothing;
        get diagnostics v_count = row_count;
        if v_count < cardinality(p_half_id) then
            -- Repeats. Rows are fetched by any() and joined afterwards: never an index join against unnest.
            return query
            with stored as materialized (
                select h.* from txmsg.half_message h where h.transaction_id = any(p_half_id))
            select distinct 'other', s.transaction_id, null::int, null::bigint
              from stored s
              join unnest(p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key, p_half_tag, p_half_headers,
                          p_half_body) u(id, n, queue, producer, key, tag, headers, body)
                on u.id = s.transaction_id and u.n = s.n
             where (u.producer, u.key, u.tag, u.headers, u.body)
                       is distinct from (s.producer, s.key, s.tag, s.headers, s.body)
                or not txmsg.same_topic_1(u.queue, s.queue);
        end if;
        -- A second statement on purpose: under READ COMMITTED it sees an outcome that became visible while the
        -- insert waited. A late copy of a half must not come back to life.
        select array_agg(d.transaction_id) into v_done from (
            select m.transaction_id from txmsg.message m
             where m.segment in (p_segment, p_previous) and m.transaction_id = any(p_half_id)
            union
            select r.transaction_id from txmsg.rolled_back r
             where r.segment in (p_segment, p_previous) and r.transaction_id = any(p_half_id)) d;
        if v_done is not null then
            delete from txmsg.half_message h where h.transaction_id = any(v_done);
            return query select 'resolved', unnest(v_done), null::int, null::bigint;
        end if;
    end if;

    if cardinality(p_commit) > 0 or cardinality(p_plain_id) > 0 then
        if cardinality(p_plain_id) > 0 then
            select array_agg(m.transaction_id), array_agg(m.n) into v_known_ids, v_known_ns from txmsg.message m
             where m.segment in (p_segment, p_previous) and m.transaction_id = any(p_plain_id);
            -- A plain message under the id of a transaction would be delivered whatever became of that.
            select coalesce(array_agg(d.transaction_id), '{}') into v_done from (
                select h.transaction_id from txmsg.half_message h where h.transaction_id = any(p_plain_id)
                union
                select r.transaction_id from txmsg.rolled_back r
                 where r.segment in (p_segment, p_previous) and r.transaction_id = any(p_plain_id)) d;
            return query select 'other', unnest(v_done), null::int, null::bigint;
        end if;
        select array_agg(coalesce(
                   (select m.queue_offset + 1 from txmsg.message m
                     where m.segment = p_segment and m.queue = q order by m.queue_offset desc limit 1),
                   (select b.base from txmsg.segment_base b where b.segment = p_segment and b.queue = q),
                   0) order by q)
          into v_bases from unnest(v_queues) q;
        with gone as (
            delete from txmsg.half_message h
             where h.transaction_id = any(p_commit) and h.queue = any(v_queues)
            returning h.queue, h.seq, h.transaction_id, h.n, h.key, h.tag, h.headers, h.body, h.born_at
        ), incoming as (
            select 0 as lane, g.* from gone g
            union all
            select 1, u.*  from (
                select distinct on (u.id, u.n) u.queue, u.place, u.id, u.n, u.key, u.tag, u.headers, u.body, u.born_at
                  from unnest(p_plain_id, p_plain_n, p_plain_queue, p_plain_key, p_plain_tag, p_plain_headers,
                              p_plain_body, p_plain_born_at)
                       with ordinality as u(id, n, queue, key, tag, headers, body, born_at, place)
                 where (u.id, u.n) not in (select k.id, k.n from unnest(v_known_ids, v_known_ns) k(id, n))
                   and u.id <> all (v_done)
                 order by u.id, u.n, u.place) u
        ), placed as (
            insert into txmsg.message as m
                (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at)
            select p_segment, i.queue,
                   v_bases[width_bucket(i.queue, v_queues)]  -- its place, found in the middle: v_queues is sorted
                       + row_number() over (partition by i.queue order by i.lane, i.seq) - 1,
                   i.transaction_id, i.n, i.key, i.tag, i.headers, i.body, i.born_at
              from incoming i
            returning m.queue, m.queue_offset
        )
        select array_agg(p.queue), array_agg(p.queue_offset), count(*) - (select count(*) from gone),
               (select count(*) from gone g where g.n = 0)
          into v_placed_queues, v_placed_offsets, v_plain_count, v_commit_count from placed p;
        return query
            select 'end', null::uuid, p.queue, max(p.queue_offset) + 1
              from unnest(v_placed_queues, v_placed_offsets) p(queue, queue_offset) group by p.queue;
        if v_commit_count < cardinality(p_commit) or v_plain_count < cardinality(p_plain_id) then
            -- Repeats, or outcomes of what is not there.
            return query
            with stored as materialized (
                select m.* from txmsg.message m
                 where m.segment in (p_segment, p_previous) and m.transaction_id = any(p_plain_id))
            select distinct 'other', s.transaction_id, null::int, null::bigint
              from stored s
              join unnest(p_plain_id, p_plain_n, p_plain_queue, p_plain_key, p_plain_tag, p_plain_headers,
                          p_plain_body) u(id, n, queue, key, tag, headers, body)
                on u.id = s.transaction_id and u.n = s.n
             where (u.key, u.tag, u.headers, u.body) is distinct from (s.key, s.tag, s.headers, s.body)
                or not txmsg.same_topic_1(u.queue, s.queue);
            return query
            select 'end', null::uuid, m.queue, max(m.queue_offset) + 1 from txmsg.message m
             where m.segment in (p_segment, p_previous) and m.transaction_id = any(p_commit || p_plain_id)
             group by m.queue;
            return query
            select case when exists (select from txmsg.rolled_back r
                                      where r.segment in (p_segment, p_previous) and r.transaction_id = c.id)
                        then 'conflict'
                        when exists (select from txmsg.half_message h where h.transaction_id = c.id) then 'busy'
                        else 'expired' end, c.id, null::int, null::bigint
              from unnest(p_commit) c(id)
             where not exists (select from txmsg.message m
                                where m.segment in (p_segment, p_previous) and m.transaction_id = c.id);
        end if;
    end if;

    if cardinality(p_rollback) > 0 then
        with gone as (
            delete from txmsg.half_message h
             where h.transaction_id = any(p_rollback) and h.queue = any(v_queues)
            returning h.transaction_id
        )
        insert into txmsg.rolled_back (segment, transaction_id)
        select distinct p_segment, g.transaction_id from gone g order by 2
        on conflict do nothing;
        get diagnostics v_count = row_count;
        if v_count < cardinality(p_rollback) then
            return query
            select case when exists (select from txmsg.message m
                                      where m.segment in (p_segment, p_previous) and m.transaction_id = c.id)
                        then 'conflict'
                        when exists (select from txmsg.half_message h where h.transaction_id = c.id) then 'busy'
                        else 'expired' end, c.id, null::int, null::bigint
              from unnest(p_rollback) c(id)
             where not exists (select from txmsg.rolled_back r
                                where r.segment in (p_segment, p_previous) and r.transaction_id = c.id);
        end if;
    end if;

    if cardinality(p_check) > 0 then
        -- A little ahead, so that the check loop's window cannot pass it before this transaction is visible.
        update txmsg.half_message h set next_check_at = least(h.next_check_at, now() + interval '200 milliseconds')
         where h.transaction_id = any(p_check) and h.queue = any(v_queues) and h.next_check_at is not null;
    end if;
end $$;

-- What brokers call: apply_batch_1, committed before the answer leaves. The server sends rows while a statement
-- still runs; to a broker that is paused or cut off it would wait, all locks held, as soon as the answer is larger
-- than the buffers between them (ran: 4,600 rows).
create procedure txmsg.write_batch_1(
    p_segment int, p_previous int, p_first_check interval,
    p_half_id uuid[], p_half_n smallint[], p_half_queue int[], p_half_producer int[], p_half_key text[],
    p_half_tag text[], p_half_headers bytea[], p_half_body bytea[], p_half_born_at timestamptz[],
    p_commit uuid[], p_rollback uuid[], p_check uuid[],
    p_plain_id uuid[], p_plain_n smallint[], p_plain_queue int[], p_plain_key text[],
    p_plain_tag text[], p_plain_headers bytea[], p_plain_body bytea[], p_plain_born_at timestamptz[],
    out kinds text[], out ids uuid[], out queues int[], out queue_offsets bigint[]
) language plpgsql as $$
begin
    select array_agg(r.kind), array_agg(r.id), array_agg(r.queue), array_agg(r.queue_offset)
      into kinds, ids, queues, queue_offsets
      from txmsg.apply_batch_1(
        p_segment, p_previous, p_first_check, p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key,
        p_half_tag, p_half_headers, p_half_body, p_half_born_at, p_commit, p_rollback, p_check, p_plain_id, p_plain_n,
        p_plain_queue, p_plain_key, p_plain_tag, p_plain_headers, p_plain_body, p_plain_born_at) r;
    commit;
end $$;

select txmsg.add_segment_1();
update txmsg.segment set state = 'open', opened_at = now();
select txmsg.add_segment_1();
