-- The offset of the first message of a queue that was stored at a time or later; null: there is none yet.
--
-- Offsets follow the order of commits, and so does stored_at, which is read under the lock of the queue: except where
-- the clock was set back, which clock_step records. So each run of offsets between such places is searched by halves,
-- the runs in their order: a message of the right time may be before a step, and after it once more.
create function txmsg.offset_at(p_queue int, p_at timestamptz) returns bigint language plpgsql stable as $$
declare
    v_segment int;
    v_first bigint;
    v_last bigint;
    v_low bigint;
    v_high bigint;
    v_middle bigint;
begin
    for v_segment in
        select case when t.durability = 'memory' then -s.id else s.id end
          from txmsg.segment s, txmsg.queue q join txmsg.topic t on t.id = q.topic_id
         where q.id = p_queue and s.state <> 'ahead' and not s.dropping order by s.id
    loop
        select min(m.queue_offset), max(m.queue_offset) into v_first, v_last from txmsg.message m
         where m.segment = v_segment and m.queue = p_queue;
        continue when v_first is null;
        for v_low, v_high in
            select r.start, lead(r.start, 1, v_last + 1) over (order by r.start) - 1
              from (select v_first union
                    select c.queue_offset from txmsg.clock_step c
                     where c.segment = abs(v_segment) and c.queue = p_queue and c.queue_offset > v_first
                       and c.queue_offset <= v_last) r(start)
             order by r.start
        loop
            while v_low < v_high loop
                v_middle := (v_low + v_high) / 2;
                if (select m.stored_at < p_at from txmsg.message m
                     where m.segment = v_segment and m.queue = p_queue and m.queue_offset = v_middle) then
                    v_low := v_middle + 1;
                else
                    v_high := v_middle;
                end if;
            end loop;
            -- The first of the run that is not earlier; or its last, if all of them are.
            if (select m.stored_at >= p_at from txmsg.message m
                 where m.segment = v_segment and m.queue = p_queue and m.queue_offset = v_low) then
                return v_low;
            end if;
        end loop;
    end loop;
    return null;
end $$;
