// Programs of RocketMQ's client for Go: main PROGRAM HOST:PORT TOPIC [WORD...].
package main

import (
	"fmt"
	"os"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	rmq.EnableSsl = false
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
