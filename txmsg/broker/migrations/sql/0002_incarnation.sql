-- The Notify database, revision 0002: its incarnation. A database can go back: a crash takes the last asynchronous commits,
-- a promoted standby may lack a tail, a backup is restored, a database is dropped and made from a copy. What a broker
-- keeps in memory may then name queues, producers and offsets that are not there, or mean others by now. So all of it is
-- valid for one incarnation, which each batch, cursor write and heartbeat verifies in its own transaction.
--
-- A crash and a promotion empty an unlogged table. A cold copy and a dump keep it: of these the server's start or the
-- database's oid tells. On a hot standby it cannot be read (0A000).
create unlogged table txmsg.incarnation (
    only_row boolean primary key default true check (only_row),
    id uuid not null default gen_random_uuid(),
    server_started_at timestamptz not null,
    database oid not null
);

-- The current incarnation; null: it has not begun yet.
create function txmsg.current_incarnation_2() returns uuid language sql stable as $$
    select i.id from txmsg.incarnation i join pg_database d on d.oid = i.database
     where i.only_row and i.server_started_at = pg_postmaster_start_time() and d.datname = current_database()
$$;

-- The current incarnation, begun if need be.
--
-- Epochs go back with the database, and clients refuse what comes under a lower one than they have seen. So those of an
-- incarnation begin at the milliseconds since 1970: above all of an earlier one, unless it raised them a thousand times a
-- second.
create function txmsg.begin_incarnation_2() returns uuid language plpgsql as $$
declare
    v_id uuid := txmsg.current_incarnation_2();
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
    -- A broker of 0.1 that holds the lease would lose it by this, and deliver again what it has not noted yet. Who takes
    -- the lease from it begins as high.
    update txmsg.lease l set epoch = greatest(l.epoch + 1, txmsg.epoch_of_now_2())
     where l.name = 'delivery' and l.broker_id = '(cluster)';
    return v_id;
end $$;

create function txmsg.epoch_of_now_2() returns bigint language sql volatile as $$
    select (extract(epoch from clock_timestamp()) * 1000)::bigint
$$;

-- Raises TX007 unless this is the current incarnation: then what the caller has in memory is void, and it begins again
-- from what is stored. The detail is the id given. As a condition of a statement it is evaluated once, before all else.
create function txmsg.require_incarnation_2(p_incarnation uuid) returns boolean language plpgsql stable as $$
begin
    if txmsg.current_incarnation_2() is distinct from p_incarnation then
        raise exception 'the database has gone back, or was restarted: this is another incarnation of it'
            using errcode = 'TX007', detail = coalesce(p_incarnation::text, '');
    end if;
    return true;
end $$;

-- Raises TX008 unless these queues and producers are there: a message in a queue that is not would reach nobody, and a
-- half whose producer is not would never be checked. They come from a broker's memory, not from a statement of the batch.
create function txmsg.require_known_2(p_queues int[], p_producers int[]) returns void language plpgsql stable as $$
begin
    -- By any(), which looks up each value once: half of what a join costs.
    if exists (select unnest(p_queues) except select q.id from txmsg.queue q where q.id = any(p_queues))
       or exists (select unnest(p_producers)
                  except select p.id from txmsg.producer p where p.id = any(p_producers)) then
        raise exception 'a batch names a queue or a producer that is not there' using errcode = 'TX008';
    end if;
end $$;
