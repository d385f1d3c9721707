-- The Notify database, revision 0002: where a queue was at a time.

-- The offset of the first message of a queue that was stored at a time or later; null: there is none yet. Offsets follow
-- the order of commits and stored_at is when a batch began, so neighbours may be out of order by as long as a batch
-- takes: the search by halves is for a time well before, and from there on each message is looked at.
create function txmsg.offset_at_2(p_queue int, p_at timestamptz) returns bigint language plpgsql stable as $$
declare
    v_before timestamptz := p_at - interval '30 seconds';
    v_segment int;
    v_low bigint;
    v_high bigint;
    v_middle bigint;
    v_found bigint;
begin
    for v_segment in
        select case when t.durability = 'memory' then -s.id else s.id end
          from txmsg.segment s, txmsg.queue q join txmsg.topic t on t.id = q.topic_id
         where q.id = p_queue and s.state <> 'ahead' and not s.dropping order by s.id
    loop
        select min(m.queue_offset), max(m.queue_offset) into v_low, v_high from txmsg.message m
         where m.segment = v_segment and m.queue = p_queue;
        continue when v_low is null;
        while v_low < v_high loop
            v_middle := (v_low + v_high) / 2;
            if (select m.stored_at < v_before from txmsg.message m
                 where m.segment = v_segment and m.queue = p_queue and m.queue_offset = v_middle) then
                v_low := v_middle + 1;
            else
                v_high := v_middle;
            end if;
        end loop;
        select m.queue_offset into v_found from txmsg.message m
         where m.segment = v_segment and m.queue = p_queue and m.queue_offset >= v_low and m.stored_at >= p_at
         order by m.queue_offset limit 1;
        if v_found is not null then
            return v_found;
        end if;
    end loop;
    return null;
end $$;
