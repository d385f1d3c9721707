// Notes the orders of a topic in a file, one per line: totals HOST:PORT TOPIC GROUP FILE.
package main

import (
	"fmt"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	endpoints, topic, group := os.Args[1], os.Args[2], os.Args[3]
	file, err := os.OpenFile(os.Args[4], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(err)
	rmq.EnableSsl = false
	rmq.ResetLogger()
	note := func(message *rmq.MessageView) rmq.ConsumerResult {
		if _, err := file.Write(append(message.GetBody(), '\n')); err != nil {
			return rmq.FAILURE // it comes again
		}
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(
		&rmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}},
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: note}))
	must(err)
	must(consumer.Start())
	fmt.Println("started")
	select {} // until it is killed
}
