-- The Notify database, revision 0002: topics of durability memory. Their messages are not in PostgreSQL's log: a crash
-- takes all of them, a stop in order none. They stand in partitions of `message` of their own: segment -N, the table
-- memory_N, beside N, the table message_N; made where there are such topics. A transaction is undecided, delayed or
-- rolled back in logged tables, whatever its topics are.
--
-- Offsets that were given out once are not given out again, for cursors, retries and dead letters outlive a crash: a
-- queue that has lost its messages goes on 2^40 above where the open segment began, and that is where it begins now. A
-- segment holds fewer messages.

-- Makes the place for messages in memory beside a segment, if there are such topics. Under lock 7703.
create function txmsg.add_memory_2(p_segment int) returns void language plpgsql as $$
begin
    if to_regclass('txmsg.memory_' || p_segment) is not null
       or not exists (select from txmsg.topic t where t.durability = 'memory') then
        return;
    end if;
    execute format('create unlogged table txmsg.memory_%s (like txmsg.message including all)', p_segment);
    execute format('alter table txmsg.memory_%s add constraint of_segment check (segment = -%1$s)', p_segment);
    execute format('alter table txmsg.message attach partition txmsg.memory_%s for values in (-%1$s)', p_segment);
end $$;

-- The queues of a topic are in memory from now on; none of them has ever had a message. Those that it gets later are
-- noted by a trigger, whichever release makes them.
create function txmsg.begin_memory_2(p_queues int[]) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(7703, 0);
    perform txmsg.add_memory_2(s.id) from txmsg.segment s where s.state <> 'closed';
    insert into txmsg.memory_queue (queue) select unnest(p_queues) on conflict do nothing;
end $$;

create function txmsg.note_memory_queue_2() returns trigger language plpgsql as $$
begin
    insert into txmsg.memory_queue (queue)
    select new.id from txmsg.topic t where t.id = new.topic_id and t.durability = 'memory';
    return null;
end $$;
create trigger new_queue_in_memory after insert on txmsg.queue
    for each row execute function txmsg.note_memory_queue_2();

-- The offset after the last of a queue in memory. One that has lost its messages begins anew; its groups with it.
-- The caller holds the lock of the queue.
create function txmsg.memory_end_2(p_segment int, p_queue int) returns bigint language plpgsql as $$
declare
    v_end bigint;
begin
    select m.queue_offset + 1 into v_end from txmsg.message m
     where m.segment = -p_segment and m.queue = p_queue order by m.queue_offset desc limit 1;
    if found then
        return v_end;
    end if;
    v_end := coalesce((select b.base from txmsg.segment_base b where b.segment = p_segment and b.queue = p_queue), 0);
    if exists (select from txmsg.memory_queue q where q.queue = p_queue) then
        return v_end;
    end if;
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'local', true);  -- another crash must not take this back
    end if;
    v_end := v_end + 1099511627776;
    insert into txmsg.segment_base as b (segment, queue, base)
    select s.id, p_queue, v_end
      from (select k.id from txmsg.segment k where k.state <> 'ahead' and not k.dropping for key share) s
    on conflict (segment, queue) do update set base = excluded.base;
    update txmsg.cursor c set next_offset = v_end, acked = '{}', seek_to = null where c.queue_id = p_queue;
    insert into txmsg.memory_queue (queue) values (p_queue);
    return v_end;
end $$;

-- Lets the queues that have lost their messages begin anew, so that nobody waits for what is gone. How many did.
create function txmsg.look_after_memory_2() returns int language plpgsql as $$
declare
    v_lost int[];
begin
    perform txmsg.require_read_committed_1();
    perform pg_advisory_xact_lock_shared(7701, 0);
    select array_agg(q.id) into v_lost
      from txmsg.topic t join txmsg.queue q on q.topic_id = t.id
     where t.durability = 'memory' and not exists (select from txmsg.memory_queue m where m.queue = q.id);
    if v_lost is null then
        return 0;
    end if;
    perform pg_advisory_xact_lock(7702, l.lock)
       from (select distinct q % 1024 as lock from unnest(v_lost) q order by 1) l;
    perform txmsg.memory_end_2(s.id, q.id) from txmsg.segment s, unnest(v_lost) q(id) where s.state = 'open';
    return cardinality(v_lost);
end $$;

create or replace function txmsg.add_segment_1() returns int language plpgsql as $$
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
    perform txmsg.add_memory_2(v_id);
    insert into txmsg.segment (id, state) values (v_id, 'ahead');
    return v_id;
end $$;

-- A queue in memory that has lost its messages keeps its base here, and begins anew above that.
create or replace function txmsg.rotate_1(p_from int) returns int language plpgsql as $$
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
        (select m.queue_offset + 1 from txmsg.message m
          where m.segment = -p_from and m.queue = q.id order by m.queue_offset desc limit 1),
        (select b.base from txmsg.segment_base b where b.segment = p_from and b.queue = q.id),
        0)
      from txmsg.queue q;
    return v_next;
end $$;
