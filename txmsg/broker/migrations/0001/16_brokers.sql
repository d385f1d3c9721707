-- The brokers of the database, and the broker that delivers each queue.

-- The live brokers. A broker whose time is over is dead to the others.
create table txmsg.broker (
    id text collate "C" primary key,
    address text collate "C" not null,
    -- dead: its time was over, and its queues were given to others. It is listed for a day.
    state text collate "C" not null default 'active' check (state in ('active', 'draining', 'dead')),
    release text collate "C" not null,
    schema_revision text collate "C" not null,
    started_at timestamptz not null default now(),
    heartbeat_at timestamptz not null default now(),
    expires_at timestamptz not null
);

-- The broker that delivers a queue. wanted_by: the broker that it is to be handed over to.
create table txmsg.queue_lease (
    queue_id int primary key references txmsg.queue on delete cascade,
    broker_id text collate "C",
    epoch bigint not null,
    wanted_by text collate "C",
    check (wanted_by is null or broker_id is not null)
);
create index queue_lease_broker on txmsg.queue_lease (broker_id);

-- The source of the epochs of leases. It rises with every change of a lease, by which brokers notice the change; a
-- decision based on leases read before is applied only if none has changed meanwhile.
create table txmsg.lease_epoch (
    only_row boolean primary key default true check (only_row),
    epoch bigint not null default 0,
    -- When a broker last left in order, which deletes its row: if that time is still to come, the clock was set back
    -- since.
    left_at timestamptz
);
insert into txmsg.lease_epoch default values;
