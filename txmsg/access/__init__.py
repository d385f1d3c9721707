"""Who a connection is, and what it may do. Pure: knows no network, no database and no service."""
