-- The brokers of the database, and which of them delivers which queue.

-- The live brokers. One whose time is over is dead to the others.
create table txmsg.broker (
    id text collate "C" primary key,
    address text collate "C" not null,
    -- dead: its time was over, and its queues were given to others. It is shown for a day.
    state text collate "C" not null default 'active' check (state in ('active', 'draining', 'dead')),
    release text collate "C" not null,
    schema_revision text collate "C" not null,
    started_at timestamptz not null default now(),
    heartbeat_at timestamptz not null default now(),
    expires_at timestamptz not null
);

-- Which broker delivers a queue. wanted_by: it is to be handed over to this one.
create table txmsg.queue_lease (
    queue_id int primary key references txmsg.queue on delete cascade,
    broker_id text collate "C",
    epoch bigint not null,
    wanted_by text collate "C",
    check (wanted_by is null or broker_id is not null)
);
create index queue_lease_broker on txmsg.queue_lease (broker_id);

-- Where the epochs of leases come from. It rises with every change of a lease, which is how brokers see that there is
-- one, and what was decided by reading leases is applied only if none has changed meanwhile.
create table txmsg.lease_epoch (
    only_row boolean primary key default true check (only_row),
    epoch bigint not null default 0,
    -- When a broker last left in order, which deletes its row: if that is yet to come, the clock was set back since.
    left_at timestamptz
);
insert into txmsg.lease_epoch default values;
