-- The audit log: author, address and content of changes, before and after. Rows are only added, in the transaction of
-- the change; txmsg.forget_audit alone removes old ones.

create table txmsg.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    -- A principal; any caller without authentication; txmsg: a broker by itself.
    who text collate "C" not null check (length(who) between 1 and 300),
    -- The caller's address; empty for a broker itself.
    address text collate "C" not null check (length(address) <= 300),
    action text collate "C" not null check (length(action) between 1 and 100),
    target text collate "C" not null check (length(target) <= 1000),
    -- The state that has changed; null: nothing exists, or existed.
    before jsonb,
    after jsonb
);
create index audit_at on txmsg.audit (at);

-- Not against the owner of the tables, who may drop triggers: against mistakes, and injected statements.
create function txmsg.refuse_audit_change() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' and current_setting('txmsg.forgets_audit', true) = 'on' then
        return old;
    end if;
    raise 'the audit log is append-only: % is refused', tg_op using errcode = 'insufficient_privilege';
end $$;
create trigger audit_is_append_only before update or delete on txmsg.audit
    for each row execute function txmsg.refuse_audit_change();
create trigger audit_is_not_truncated before truncate on txmsg.audit
    for each statement execute function txmsg.refuse_audit_change();

-- Removes entries older than p_keep_s, at most p_limit. Returns their number. Entries of the last day always stay.
create function txmsg.forget_audit(p_keep_s float8, p_limit int) returns bigint language plpgsql as $$
declare
    gone bigint;
begin
    perform set_config('txmsg.forgets_audit', 'on', true);
    delete from txmsg.audit where id in (
        select a.id from txmsg.audit a where a.at < now() - make_interval(secs => greatest(p_keep_s, 86400))
         order by a.at limit p_limit for update skip locked);
    get diagnostics gone = row_count;
    perform set_config('txmsg.forgets_audit', 'off', true);
    return gone;
end $$;
