-- The incarnation of the Notify database. A database can go back: a crash takes the last asynchronous commits, a
-- promoted standby may lack a tail, a backup is restored, a database is dropped and created from a copy. The memory of
-- a broker may then name queues, producers and offsets that do not exist, or that mean others by now. So all of it is
-- valid for one incarnation, which each batch, cursor write and heartbeat verifies in its own transaction.
--
-- A crash and a promotion empty an unlogged table. A cold copy and a dump keep it: these differ in the server's start
-- or the database's oid. On a hot standby it cannot be read (0A000).
create unlogged table txmsg.incarnation (
    only_row boolean primary key default true check (only_row),
    id uuid not null default gen_random_uuid(),
    server_started_at timestamptz not null,
    database oid not null
);

-- The current incarnation; null: none has begun yet.
create function txmsg.current_incarnation() returns uuid language sql stable as $$
    select i.id from txmsg.incarnation i join pg_database d on d.oid = i.database
     where i.only_row and i.server_started_at = pg_postmaster_start_time() and d.datname = current_database()
$$;

-- Returns the current incarnation, and begins it if there is none.
--
-- Epochs go back with the database, and clients refuse messages under a lower one than they have seen. So those of an
-- incarnation begin at the milliseconds since 1970: above all of an earlier one, unless it raised them a thousand times
-- a second.
create function txmsg.begin_incarnation() returns uuid language plpgsql as $$
declare
    v_id uuid := txmsg.current_incarnation();
begin
    if v_id is not null then
        return v_id;
    end if;
    insert into txmsg.incarnation as i (server_started_at, database)
    select pg_postmaster_start_time(), d.oid from pg_database d where d.datname = current_database()
    on conflict (only_row) do update
       set id = excluded.id, server_started_at = excluded.server_started_at, database = excluded.database
     where (i.server_started_at, i.database) is distinct from (excluded.server_started_at, excluded.database)
    returning i.id into v_id;
    if not found then  -- another broker has just begun it
        return (select i.id from txmsg.incarnation i);
    end if;
    update txmsg.lease_epoch
       set epoch = greatest(epoch + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint);
    return v_id;
end $$;

-- Raises TX007 unless this is the current incarnation: then the caller's memory is invalid, and it starts again from
-- the stored state. The detail is the id given. As a condition of a statement it is evaluated once, before all else.
create function txmsg.require_incarnation(p_incarnation uuid) returns boolean language plpgsql stable as $$
begin
    if txmsg.current_incarnation() is distinct from p_incarnation then
        raise exception 'the database has gone back, or was restarted: this is another incarnation of it'
            using errcode = 'TX007', detail = coalesce(p_incarnation::text, '');
    end if;
    return true;
end $$;
