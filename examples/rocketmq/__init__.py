"""Services of RocketMQ's clients and of txmsg on one topic, killed in the middle: `python -m examples.rocketmq.run`."""

TOPIC = "orders"
