"""A stand-in for the bank that the programs with retries call, the same for all."""

failures: list[Exception] = []
charged: list[int] = []


def charge(order_id: int) -> None:
    """Raises the next of `failures`; charges the order when there is none left."""
    if failures:
        raise failures.pop(0)
    charged.append(order_id)
