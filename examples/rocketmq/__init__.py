"""Services of RocketMQ clients and of txmsg on one topic, killed in the middle: `python -m examples.rocketmq.run`."""

TOPIC = "orders"
