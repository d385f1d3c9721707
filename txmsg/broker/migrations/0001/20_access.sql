-- Users, their tokens, and their rights.

-- Rises with each change, in the same transaction, so that brokers see by one row whether anything has changed.
create table txmsg.access_version (
    only_row boolean primary key default true check (only_row),
    version bigint not null default 1
);
insert into txmsg.access_version default values;

create table txmsg.access_user (
    name text collate "C" primary key check (name ~ '^[A-Za-z0-9][A-Za-z0-9._@-]{0,126}$'),
    -- The name in client certificates that stand for this user.
    certificate text collate "C" unique check (length(certificate) between 1 and 300),
    roles text[] collate "C" not null default '{}' check (cardinality(roles) <= 20),
    -- Its own limits, where they differ from the broker's: fields of UserLimits.
    limits jsonb not null default '{}' check (jsonb_typeof(limits) = 'object'),
    created_at timestamptz not null default now()
);

-- Two tokens of a user may be valid at a time, so that one can be replaced while the other is in use.
create table txmsg.access_token (
    id text collate "C" primary key,
    user_name text collate "C" not null references txmsg.access_user on delete cascade,
    slot smallint not null check (slot in (1, 2)),
    secret_sha256 bytea not null check (octet_length(secret_sha256) = 32),
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    unique (user_name, slot)
);

-- For clients that sign their calls. The secret is encrypted by a key that is not in this database.
create table txmsg.access_key (
    id text collate "C" primary key check (id ~ '^[A-Za-z0-9._@+=-]{1,64}$'),
    user_name text collate "C" not null references txmsg.access_user on delete cascade,
    slot smallint not null check (slot in (1, 2)),
    sealed_secret bytea not null check (octet_length(sealed_secret) between 1 and 256),
    created_at timestamptz not null default now(),
    unique (user_name, slot)
);

-- subject: a user, or role:NAME. pattern: a name, or a prefix and an asterisk.
create table txmsg.access_rule (
    subject text collate "C" not null,
    action text collate "C" not null check (action in ('send', 'receive', 'check', 'describe', 'read', 'administer')),
    kind text collate "C" not null check (kind in ('topic', 'group', 'cluster')),
    pattern text collate "C" not null check (length(pattern) between 1 and 128),
    created_at timestamptz not null default now(),
    primary key (subject, action, kind, pattern)
);
