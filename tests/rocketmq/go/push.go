// As the scenario `push` of client.py: main push HOST:PORT TOPIC.
package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

var wanted = []string{"fails once", "1 of a", "2 of a", "3 of a", "delayed", "committed", "checked"}

type handler struct {
	mutex   sync.Mutex
	handled map[string]bool
	hasAll  chan struct{}
	once    sync.Once
}

func (h *handler) consume(message *rmq.MessageView) rmq.ConsumerResult {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	body := string(message.GetBody())
	fmt.Printf("{\"body\": %q, \"attempt\": %d}\n", body, message.GetDeliveryAttempt())
	if body == "fails once" && message.GetDeliveryAttempt() == 1 {
		return rmq.FAILURE
	}
	h.handled[body] = true
	for _, each := range wanted {
		if !h.handled[each] {
			return rmq.SUCCESS
		}
	}
	h.once.Do(func() { close(h.hasAll) })
	return rmq.SUCCESS
}

func check(message *rmq.MessageView) rmq.TransactionResolution {
	fmt.Printf("{\"checked\": %q}\n", string(message.GetBody()))
	if string(message.GetBody()) == "checked" {
		return rmq.COMMIT
	}
	return rmq.UNKNOWN
}

func transactions(producer rmq.Producer, topic string) {
	for _, body := range []string{"committed", "rolled back", "checked"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.TODO(), &rmq.Message{Topic: topic, Body: []byte(body)}, transaction)
		must(err)
		switch body {
		case "committed":
			must(transaction.Commit())
		case "rolled back":
			must(transaction.RollBack())
		}
	}
}

func push(endpoints, topic string) {
	config := &rmq.Config{Endpoint: endpoints, ConsumerGroup: "push", Credentials: credentialsOfEnvironment()}
	h := &handler{handled: map[string]bool{}, hasAll: make(chan struct{})}
	consumer, err := rmq.NewPushConsumer(config,
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: h.consume}))
	must(err)
	must(consumer.Start())
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: check}))
	must(err)
	must(producer.Start())
	send := func(message *rmq.Message) { _, err := producer.Send(context.TODO(), message); must(err) }
	send(&rmq.Message{Topic: topic, Body: []byte("fails once")})
	for number := 1; number <= 3; number++ {
		message := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("%d of a", number))}
		message.SetMessageGroup("a")
		send(message)
	}
	delayed := &rmq.Message{Topic: topic, Body: []byte("delayed")}
	delayed.SetDelayTimestamp(time.Now().Add(2 * time.Second))
	send(delayed)
	transactions(producer, topic)
	select {
	case <-h.hasAll:
	case <-time.After(300 * time.Second):
		panic(fmt.Sprint("only came: ", h.handled))
	}
	must(producer.GracefulStop())
	must(consumer.GracefulStop())
}
