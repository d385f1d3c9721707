from psycopg import connect
from receive import mail


def place(order_id: int) -> None:
    with connect() as connection:
        connection.execute("insert into orders values (%s)", [order_id])
        mail.configure(connection=connection).defer(order_id=order_id)
