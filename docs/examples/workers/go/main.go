package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	connection, err := nats.Connect(os.Args[1])
	check(err)
	js, err := jetstream.New(connection)
	check(err)
	consumer, err := js.Consumer(ctx, "jobs", "resize")
	check(err)
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1))
	check(err)
	for ; count > 0; count-- {
		message, err := messages.Next()
		check(err)
		fmt.Println("go", string(message.Data()))
		check(message.DoubleAck(ctx))
	}
	messages.Stop()
}
