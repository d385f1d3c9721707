-- Topics of durability memory. Their messages are not in PostgreSQL's log: a crash takes all of them, an orderly stop
-- none. They are in separate partitions of `message`: segment -N, the table memory_N, beside segment N, the table
-- message_N; made only if such topics exist. Undecided, delayed and rolled back transactions of all topics are in
-- logged tables.
--
-- Offsets are never given out twice, because cursors, retries and dead letters outlive a crash: a queue that has lost
-- its messages continues 2^40 above the start of the open segment, and begins there. A segment holds fewer messages.

-- The queues in memory that hold everything that entered them. Unlogged, as their messages are: a crash of PostgreSQL
-- empties both, and a queue in memory that is missing here has lost its messages (memory_end).
create unlogged table txmsg.memory_queue (
    queue int primary key references txmsg.queue on delete cascade
);

-- Makes the partition for messages in memory of a segment, if such topics exist. Under lock 7703.
create function txmsg.add_memory(p_segment int) returns void language plpgsql as $$
begin
    if to_regclass('txmsg.memory_' || p_segment) is not null
       or not exists (select from txmsg.topic t where t.durability = 'memory') then
        return;
    end if;
    execute format('create unlogged table txmsg.memory_%s (like txmsg.message including all)', p_segment);
    execute format('alter table txmsg.memory_%s add constraint of_segment check (segment = -%1$s)', p_segment);
    execute format('alter table txmsg.message attach partition txmsg.memory_%s for values in (-%1$s)', p_segment);
end $$;

-- Notes that the queues of a topic are in memory from now on; none of them has ever had a message. A trigger notes
-- those that it gets later.
create function txmsg.begin_memory(p_queues int[]) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(7703, 0);
    perform txmsg.add_memory(s.id) from txmsg.segment s where s.state <> 'closed';
    insert into txmsg.memory_queue (queue) select unnest(p_queues) on conflict do nothing;
end $$;

create function txmsg.note_memory_queue() returns trigger language plpgsql as $$
begin
    insert into txmsg.memory_queue (queue)
    select new.id from txmsg.topic t where t.id = new.topic_id and t.durability = 'memory';
    return null;
end $$;
create trigger new_queue_in_memory after insert on txmsg.queue
    for each row execute function txmsg.note_memory_queue();

-- Returns the offset after the last message of a queue in memory. A queue that has lost its messages starts over, with
-- its groups. The caller holds the lock of the queue.
create function txmsg.memory_end(p_segment int, p_queue int) returns bigint language plpgsql as $$
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

-- Restarts the queues that have lost their messages, so that no group waits for lost ones. Returns their number.
create function txmsg.look_after_memory() returns int language plpgsql as $$
declare
    v_lost int[];
begin
    perform txmsg.require_read_committed();
    perform pg_advisory_xact_lock_shared(7701, 0);
    select array_agg(q.id) into v_lost
      from txmsg.topic t join txmsg.queue q on q.topic_id = t.id
     where t.durability = 'memory' and not exists (select from txmsg.memory_queue m where m.queue = q.id);
    if v_lost is null then
        return 0;
    end if;
    perform pg_advisory_xact_lock(7702, l.lock)
       from (select distinct q % 1024 as lock from unnest(v_lost) q order by 1) l;
    perform txmsg.memory_end(s.id, q.id) from txmsg.segment s, unnest(v_lost) q(id) where s.state = 'open';
    return cardinality(v_lost);
end $$;
