"""The gateway of RocketMQ's official clients, with the clients themselves."""
