-- The Notify database itself. Advisory lock classes of all files: 7701 rotation of segments, 7702 queues, 7703 making
-- segments, 7704 upgrading (migrate.py), 7705 the order of ordered messages, 7706 dropping segments, 7708 changing
-- settings.

create schema if not exists txmsg;

create table txmsg.revision (
    only_row boolean primary key default true check (only_row),
    version_num text collate "C" not null
);
insert into txmsg.revision (version_num) values ('0001');

create table txmsg.notify_db (
    only_row boolean primary key default true check (only_row),
    -- The id of this shard. A transaction belongs to one; the id travels with the reply to the half message.
    shard uuid not null default gen_random_uuid(),
    -- The oldest revision whose brokers may run on this database. A migration that removes something raises it.
    works_from text collate "C" not null default '0001'
);
insert into txmsg.notify_db default values;

-- Statements that must see everything that was committed before they got their locks cannot use an earlier snapshot.
create function txmsg.require_read_committed() returns void language plpgsql as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'txmsg needs read committed, and this session is %: set default_transaction_isolation',
            current_setting('transaction_isolation') using errcode = 'TX002';
    end if;
end $$;
