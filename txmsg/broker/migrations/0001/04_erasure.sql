-- Keys of the bodies of erasable topics: one for each message, which is all that erasing it has to remove.

create table txmsg.body_key (
    topic_id int not null,
    transaction_id uuid not null,
    n smallint not null,
    -- null: erased. The row stays, so that a late copy of the message gets no new key.
    key bytea check (octet_length(key) = 32),
    erased_at timestamptz,
    expires_at timestamptz not null,
    primary key (topic_id, transaction_id, n),
    check ((key is null) = (erased_at is not null))
);
create index body_key_expires on txmsg.body_key (expires_at);

-- Stores keys where none are stored yet, and returns the stored ones. Existing keys are kept for as long as new ones: a
-- message may be sent again when its first copy is not stored any more.
--
-- The commit does not wait for the disk: the batch with the messages does, and its end in the write-ahead log comes
-- after this one's.
create function txmsg.obtain_body_keys(
    p_topic int, p_id uuid[], p_n smallint[], p_key bytea[], p_kept_s float8[]
) returns table (transaction_id uuid, n smallint, key bytea) language plpgsql as $$
#variable_conflict use_column
begin
    perform set_config('synchronous_commit', 'off', true);
    return query
    insert into txmsg.body_key as b (topic_id, transaction_id, n, key, expires_at)
    select distinct on (u.id, u.n)  -- no row can be updated twice
           p_topic, u.id, u.n, u.key, now() + make_interval(secs => u.kept_s)
      from unnest(p_id, p_n, p_key, p_kept_s) u(id, n, key, kept_s)
     order by u.id, u.n  -- as all do, so that they cannot deadlock
    on conflict (topic_id, transaction_id, n) do update set expires_at = greatest(b.expires_at, excluded.expires_at)
    returning b.transaction_id, b.n, b.key;
end $$;
