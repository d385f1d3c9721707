-- The parts of the schema, one row for each that `txmsg db check` can miss. Without the partitions, which are created
-- and dropped, and the number of the revision. Constraints of kind n (not null) have rows on PostgreSQL 18 only;
-- columns say the same.
create view txmsg.catalogue as
    with relation as (
        select c.oid, c.relname, c.relkind, c.relpersistence from pg_class c
         where c.relnamespace = 'txmsg'::regnamespace and not c.relispartition and c.relname !~ '^revision|^catalogue'
           and c.relname !~ '^(message|memory|rolled_back|journal)_\d+')
    select case r.relkind when 'i' then 'index' when 'I' then 'index' when 'S' then 'sequence' when 'v' then 'view'
                          else 'table' end as kind,
           r.relname::text as name,
           case when r.relkind in ('i', 'I') then pg_get_indexdef(r.oid) else r.relpersistence::text end as definition
      from relation r
    union all
    select 'column', format('%s.%s', r.relname, a.attname),
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), 'collate ' || o.collname,
                     case when a.attnotnull then 'not null' end, pg_get_expr(d.adbin, d.adrelid))
      from relation r
      join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
      left join pg_collation o on o.oid = a.attcollation
      left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where r.relkind not in ('i', 'I', 'S')
    union all
    select 'constraint', format('%s.%s', r.relname, k.conname), pg_get_constraintdef(k.oid)
      from relation r join pg_constraint k on k.conrelid = r.oid where k.contype <> 'n'
    union all
    select 'trigger', format('%s.%s', r.relname, t.tgname), pg_get_triggerdef(t.oid)
      from relation r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
    union all
    select 'function', format('%s(%s)', p.proname, pg_get_function_identity_arguments(p.oid)), md5(p.prosrc)
      from pg_proc p where p.pronamespace = 'txmsg'::regnamespace;

-- The parts of the schema when the last revision was applied. Each revision ends with writing it again.
create table txmsg.catalogue_of_revision (
    kind text collate "C",
    name text collate "C",
    definition text collate "C" not null,
    primary key (kind, name)
);
insert into txmsg.catalogue_of_revision select * from txmsg.catalogue;
