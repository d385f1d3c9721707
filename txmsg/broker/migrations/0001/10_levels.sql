-- The durability of a batch's commit. The session's synchronous_commit is `local`.

-- Sets synchronous_commit for the transaction under way, by the strongest durability of the topics of these queues:
--   replicated   on: the commit waits for the synchronous standbys that the server names
--   sync         stays as it is: on the disk of this server, whatever standbys there are
--   memory       as sync; and a batch that writes to unlogged tables only waits for no disk
--   async        off, if all are async: on disk a moment later. What a crash takes is the last of all that was written,
--                so no cursor is ahead of its messages
-- Returns those of the queues that are in memory; null if no queue at all is. TX004 if a standby is to be waited for
-- and none is attached, TX005 if the role cannot see that, TX006 if what is to be waited for reads a logical slot: such
-- a reader confirms what it has read, and keeps no copy of the database.
create function txmsg.set_level(p_queues int[]) returns int[] language plpgsql as $$
declare
    v_replicated boolean;
    v_async boolean;
    v_hidden boolean;
    v_memory int[];
begin
    if not exists (select from txmsg.topic t where t.durability <> 'sync') then
        return null;  -- one look into an empty index: what most databases pay
    end if;
    select coalesce(bool_or(t.durability = 'replicated'), false), coalesce(bool_and(t.durability = 'async'), false),
           array_agg(q.id) filter (where t.durability = 'memory')
      into v_replicated, v_async, v_memory
      from txmsg.queue q join txmsg.topic t on t.id = q.topic_id where q.id = any(p_queues);
    if v_async then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    if v_memory is null and exists (select from txmsg.topic t where t.durability = 'memory') then
        v_memory := '{}';
    end if;
    if not v_replicated then
        return v_memory;
    end if;
    if current_setting('synchronous_standby_names') = ''
       or not exists (select from pg_stat_replication r where r.sync_state in ('sync', 'quorum')) then
        select coalesce(bool_or(r.sync_state is null), false) into v_hidden from pg_stat_replication r;
        if v_hidden then
            raise exception 'the role may not see the state of standbys' using errcode = 'TX005';
        end if;
        raise exception 'no synchronous standby is attached' using errcode = 'TX004';
    end if;
    if exists (select from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid
                where r.sync_state in ('sync', 'quorum') and s.slot_type = 'logical') then
        raise exception 'a reader of a logical slot counts as synchronous standby' using errcode = 'TX006';
    end if;
    perform set_config('synchronous_commit', 'on', true);
    -- A repeat writes nothing, and a commit that writes nothing waits for no standby; but what it repeats may not be
    -- confirmed yet. After this there is something to wait for, and it comes after all that was written before.
    perform pg_logical_emit_message(true, 'txmsg', '');
    return v_memory;
end $$;
