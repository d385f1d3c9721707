-- The Notify database, revision 0002: text is compared and ordered by its bytes, whatever the database's locale is: as
-- Python does, the same on every server, and no index depends on a library of the operating system. So every column of
-- text has collation "C", those of 0001, too. Tables are not rewritten; indexes on text are built again.
do $$
declare
    v_table text;
    v_columns text;
begin
    for v_table, v_columns in
        select c.relname, string_agg(format('alter column %I type %s collate "C"', a.attname,
                                            format_type(a.atttypid, a.atttypmod)), ', ')
          from pg_class c join pg_attribute a on a.attrelid = c.oid
         where c.relnamespace = 'txmsg'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           and c.relname <> 'revision' and not a.attisdropped and a.attcollation = 'pg_catalog.default'::regcollation
         group by c.relname order by c.relname
    loop
        execute format('alter table txmsg.%I %s', v_table, v_columns);
    end loop;
end $$;
