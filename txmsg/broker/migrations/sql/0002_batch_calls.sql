-- The Notify database, revision 0002: how brokers of this release, and of 0.1, have a batch written.

-- What brokers call: apply_batch_2, committed before the answer leaves; see write_batch_1. p_incarnation: that of the
-- caller's memory, which must be current (TX007); null: whichever.
-- standby_names: synchronous_standby_names as the commit has found it, if the batch waits for standbys (set_level_2), else
-- null. flushed_at: what they must have on disk to have the batch; the commit is before it.
create procedure txmsg.write_batch_2(
    p_incarnation uuid, p_segment int, p_previous int, p_first_check interval,
    p_half_id uuid[], p_half_n smallint[], p_half_queue int[], p_half_producer int[], p_half_key text[],
    p_half_tag text[], p_half_headers bytea[], p_half_body bytea[], p_half_born_at timestamptz[],
    p_half_ordering_key text[], p_half_deliver_at timestamptz[],
    p_commit uuid[], p_commit_by smallint[], p_rollback uuid[], p_check uuid[],
    p_plain_id uuid[], p_plain_n smallint[], p_plain_queue int[], p_plain_key text[],
    p_plain_tag text[], p_plain_headers bytea[], p_plain_body bytea[], p_plain_born_at timestamptz[],
    p_plain_ordering_key text[], p_plain_deliver_at timestamptz[],
    out kinds text[], out ids uuid[], out queues int[], out queue_offsets bigint[],
    out standby_names text, out flushed_at text
) language plpgsql as $$
begin
    if p_incarnation is not null then
        perform txmsg.require_incarnation_2(p_incarnation);
    end if;
    select array_agg(r.kind), array_agg(r.id), array_agg(r.queue), array_agg(r.queue_offset)
      into kinds, ids, queues, queue_offsets
      from txmsg.apply_batch_2(
        p_segment, p_previous, p_first_check, p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key,
        p_half_tag, p_half_headers, p_half_body, p_half_born_at, p_half_ordering_key, p_half_deliver_at,
        p_commit, p_commit_by, p_rollback, p_check, p_plain_id, p_plain_n, p_plain_queue, p_plain_key, p_plain_tag,
        p_plain_headers, p_plain_body, p_plain_born_at, p_plain_ordering_key, p_plain_deliver_at) r;
    -- A session reads changed settings between statements only: this one is what the wait begins with.
    if current_setting('synchronous_commit') = 'on' then
        standby_names := current_setting('synchronous_standby_names');
    end if;
    commit;
    if standby_names is not null then
        flushed_at := pg_current_wal_flush_lsn();
    end if;
end $$;

-- Brokers of 0.1 write by the rules of this release: what they commit may hold back, or free, ordered messages.
create or replace function txmsg.apply_batch_1(
    p_segment int, p_previous int, p_first_check interval,
    p_half_id uuid[], p_half_n smallint[], p_half_queue int[], p_half_producer int[], p_half_key text[],
    p_half_tag text[], p_half_headers bytea[], p_half_body bytea[], p_half_born_at timestamptz[],
    p_commit uuid[], p_rollback uuid[], p_check uuid[],
    p_plain_id uuid[], p_plain_n smallint[], p_plain_queue int[], p_plain_key text[],
    p_plain_tag text[], p_plain_headers bytea[], p_plain_body bytea[], p_plain_born_at timestamptz[]
) returns table (kind text, id uuid, queue int, queue_offset bigint)
language sql as $$
    select * from txmsg.apply_batch_2(
        p_segment, p_previous, p_first_check, p_half_id, p_half_n, p_half_queue, p_half_producer, p_half_key,
        p_half_tag, p_half_headers, p_half_body, p_half_born_at, null, null, p_commit, null, p_rollback, p_check,
        p_plain_id, p_plain_n, p_plain_queue, p_plain_key, p_plain_tag, p_plain_headers, p_plain_body,
        p_plain_born_at, null, null) r
     where r.kind not in ('due', 'more')
$$;
