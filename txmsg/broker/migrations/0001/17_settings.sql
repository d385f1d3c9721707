-- Settings at run time: all changes; the newest of each setting applies. The last 100 changes of each are kept.

create table txmsg.setting_change (
    -- Rises over all settings, in the order of commits: changes are made one after the other (lock 7708).
    version bigint primary key check (version > 0),
    -- SCOPE.NAME, and @TARGET for one group or broker only.
    name text collate "C" not null check (length(name) between 1 and 300),
    -- null: it was unset.
    value text collate "C" check (octet_length(value) <= 65536),
    changed_at timestamptz not null default now(),
    changed_by text collate "C" not null check (length(changed_by) between 1 and 200)
);
create unique index setting_change_name on txmsg.setting_change (name, version);
