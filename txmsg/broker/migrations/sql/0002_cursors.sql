-- The Notify database, revision 0002: where groups stand, also in queues of which they have no cursor yet.

-- The offset at which a queue begins, as far as it is kept. Of a queue in memory that a crash has emptied: above all that
-- it gave out before.
create function txmsg.first_kept_2(p_queue int) returns bigint language sql stable as $$
    select coalesce((select b.base from txmsg.segment_base b
                      where b.queue = p_queue
                        and b.segment = (select min(s.id) from txmsg.segment s
                                          where s.state <> 'ahead' and not s.dropping)), 0)
$$;

-- Where each group goes on in each queue that it reads. A cursor is written when a broker first delivers the queue to the
-- group. A queue that its topic got while the group had no member has none: of this the group reads all that is kept, so
-- it counts as lag, and retention keeps it. Lag, retention and administration look here; delivery makes the cursor that
-- is missing at the same offset (claim_cursors).
create view txmsg.effective_cursor as
    select c.group_id, c.queue_id, coalesce(c.seek_to, c.next_offset) as next_offset,
           case when c.seek_to is null then c.acked else '{}' end as acked, c.seek_to is not null as seeking
      from txmsg.cursor c
    union all
    select r.group_id, q.id, txmsg.first_kept_2(q.id), '{}', false
      from (select distinct c.group_id, k.topic_id from txmsg.cursor c join txmsg.queue k on k.id = c.queue_id) r
      join txmsg.topic t on t.id = r.topic_id
      join txmsg.queue q on q.topic_id = r.topic_id and q.number < coalesce(t.read_queues, t.queue_count)
     where not exists (select from txmsg.cursor c where c.group_id = r.group_id and c.queue_id = q.id);
