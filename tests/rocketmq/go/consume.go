// As the scenario `consume` of client.py: main consume HOST:PORT TOPIC GROUP.
package main

import (
	"fmt"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

func consume(endpoints, topic, group string) {
	config := &rmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: credentialsOfEnvironment()}
	handle := func(message *rmq.MessageView) rmq.ConsumerResult {
		fmt.Printf("{\"body\": %q, \"attempt\": %d}\n", string(message.GetBody()), message.GetDeliveryAttempt())
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(config,
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: handle}))
	must(err)
	must(consumer.Start())
	select {}
}
