-- Alerts that brokers raise: their state, silences, and notifications until they are delivered.

-- Pending and firing alerts, and for some time resolved ones. Times are the database's.
create table txmsg.alert (
    id bigint generated always as identity primary key,
    -- The broker that evaluates the rule: '(database)' for any broker, else the id of the broker that it concerns.
    source text collate "C" not null,
    rule text collate "C" not null,
    labels jsonb not null,
    severity text collate "C" not null,
    summary text collate "C" not null,
    action text collate "C" not null,
    state text collate "C" not null check (state in ('pending', 'firing', 'resolved')),
    value float8 not null,
    -- Since when the condition holds, and when it was last seen to hold.
    since timestamptz not null,
    seen_at timestamptz not null,
    fired_at timestamptz,
    resolved_at timestamptz,
    -- When receivers were last notified; null: they were not, as during a silence.
    notified_at timestamptz,
    check ((state = 'pending') = (fired_at is null)),
    check ((state = 'resolved') = (resolved_at is not null))
);
create unique index alert_active on txmsg.alert (source, rule, labels) where state <> 'resolved';
create index alert_resolved on txmsg.alert (resolved_at) where state = 'resolved';

-- Alerts without notifications. matchers: LABEL=PATTERN, all of which must fit.
create table txmsg.alert_silence (
    id bigint generated always as identity primary key,
    matchers text[] collate "C" not null check (cardinality(matchers) between 1 and 20),
    reason text collate "C" not null,
    created_by text collate "C" not null,
    created_at timestamptz not null default now(),
    until timestamptz not null
);

-- Notifications for receivers, in the order of ids; kept until they are delivered or given up. A broker that sends one
-- moves next_try_at on first, so that the others leave it alone, and retry it when that broker dies.
create table txmsg.alert_notification (
    id bigint generated always as identity primary key,
    receiver text collate "C" not null,
    content jsonb not null,
    created_at timestamptz not null default now(),
    next_try_at timestamptz not null default now(),
    attempts int not null default 0,
    last_error text collate "C"
);
create index alert_notification_receiver on txmsg.alert_notification (receiver, id);

-- The broker that evaluates the alerts of the database now. The number rises with each round, so that a broker that was
-- paused writes nothing.
create table txmsg.alert_round (
    only_row boolean primary key default true check (only_row),
    round bigint not null default 0,
    begun_at timestamptz not null default '-infinity',
    is_finished boolean not null default true,
    broker_id text collate "C"
);
insert into txmsg.alert_round default values;
