"""What the plays of the examples share: processes that say when they are ready and end with whoever started them, and a
stage that holds a PostgreSQL, a broker and such processes. Nothing here is needed to use txmsg."""
