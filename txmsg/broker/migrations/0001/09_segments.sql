-- How segments are made and opened.

-- Makes the next segment ahead of its use. Plain tables attached with a matching CHECK: neither step waits for readers
-- or makes senders wait, as CREATE TABLE ... PARTITION OF would.
create function txmsg.add_segment() returns int language plpgsql as $$
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
    foreach v_root in array array['message', 'rolled_back', 'journal'] loop
        execute format('create table txmsg.%1$I (like txmsg.%2$I including all)', v_root || '_' || v_id, v_root);
        execute format('alter table txmsg.%1$I add constraint of_segment check (segment = %2$s)',
                       v_root || '_' || v_id, v_id);
        execute format('alter table txmsg.%2$I attach partition txmsg.%1$I for values in (%3$s)',
                       v_root || '_' || v_id, v_root, v_id);
    end loop;
    perform txmsg.add_memory(v_id);
    insert into txmsg.segment (id, state) values (v_id, 'ahead');
    return v_id;
end $$;

-- Closes segment p_from and opens the one made ahead. Returns the open segment, also if another broker opened it. A
-- queue in memory that has lost its messages keeps its base here, and starts over above that.
create function txmsg.rotate(p_from int) returns int language plpgsql as $$
declare
    v_open int;
    v_next int;
    v_at timestamptz;
begin
    perform txmsg.require_read_committed();
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

select txmsg.add_segment();
update txmsg.segment set state = 'open', opened_at = now();
select txmsg.add_segment();
