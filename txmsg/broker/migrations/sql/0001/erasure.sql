-- Keys of the bodies of erasable topics: one for each message, which is all that erasing it has to remove.

create table txmsg.body_key (
    transaction_id uuid not null,
    n smallint not null,
    topic_id int not null,
    -- null: erased. The row stays, so that a late copy of the message gets no new key.
    key bytea check (octet_length(key) = 32),
    erased_at timestamptz,
    expires_at timestamptz not null,
    primary key (transaction_id, n),
    check ((key is null) = (erased_at is not null))
);
create index body_key_expires on txmsg.body_key (expires_at);

-- Stores keys where there are none yet; what is stored then for all messages of these transactions in this topic. An id
-- that another topic has used gets no key of it: who may send to one topic must not encrypt with keys of another.
--
-- The commit does not wait for the disk: the batch with the messages does, and its end in the write-ahead log comes
-- after this one's.
create function txmsg.obtain_body_keys(
    p_topic int, p_id uuid[], p_n smallint[], p_key bytea[], p_kept_s float8[]
) returns table (transaction_id uuid, n smallint, key bytea) language plpgsql as $$
#variable_conflict use_column
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into txmsg.body_key (transaction_id, n, topic_id, key, expires_at)
    select u.id, u.n, p_topic, u.key, now() + make_interval(secs => u.kept_s)
      from unnest(p_id, p_n, p_key, p_kept_s) u(id, n, key, kept_s)
     order by u.id, u.n  -- as all do, so that they cannot deadlock
    on conflict do nothing;
    -- A statement of its own: it sees the keys for which the insert has waited.
    return query select b.transaction_id, b.n, b.key from txmsg.body_key b
                  where b.transaction_id = any(p_id) and b.topic_id = p_topic;
end $$;
