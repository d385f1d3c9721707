// Programs of RocketMQ's client for Go: main PROGRAM HOST:PORT TOPIC [WORD...].
package main

import (
	"fmt"
	"os"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func credentialsOfEnvironment() *credentials.SessionCredentials {
	return &credentials.SessionCredentials{
		AccessKey:    os.Getenv("ROCKETMQ_ACCESS_KEY"),
		AccessSecret: os.Getenv("ROCKETMQ_SECRET"),
	}
}

func main() {
	rmq.EnableSsl = os.Getenv("ROCKETMQ_TLS") != ""
	rmq.ResetLogger()
	switch program := os.Args[1]; program {
	case "push":
		push(os.Args[2], os.Args[3])
	case "consume":
		consume(os.Args[2], os.Args[3], os.Args[4])
	default:
		panic(fmt.Sprintf("there is no program %q", program))
	}
}
