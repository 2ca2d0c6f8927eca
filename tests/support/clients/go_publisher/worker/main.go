// Receives and acks messages of a durable consumer with nats.go's Consume.
//
// Arguments: URL of a server, stream, consumer, number of messages. Prints the seconds until the
// last of them is acked. With the number 0 it runs until it is killed, and waits for the answer to
// each ack. For each delivery it then prints "d", the time in ns since 1970 and the sequence, and
// for each answer "a" and the sequence.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const patience = 2 * time.Minute

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go worker:", err)
		os.Exit(1)
	}
}

func main() {
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	connection, err := nats.Connect(os.Args[1])
	check(err)
	stream, err := jetstream.New(connection)
	check(err)
	consumer, err := stream.Consumer(context.Background(), os.Args[2], os.Args[3])
	check(err)
	got, done := 0, make(chan struct{})
	if count == 0 {
		watch(consumer)
	}
	began := time.Now()
	consuming, err := consumer.Consume(func(message jetstream.Msg) {
		check(message.Ack())
		if got++; got == count {
			close(done)
		}
	})
	check(err)
	select {
	case <-done:
	case <-time.After(patience):
		check(fmt.Errorf("%d of %d messages", got, count))
	}
	check(connection.Flush())
	fmt.Println(time.Since(began).Seconds())
	consuming.Stop()
	connection.Close()
}

func watch(consumer jetstream.Consumer) {
	_, err := consumer.Consume(func(message jetstream.Msg) {
		now := time.Now().UnixNano()
		about, err := message.Metadata()
		check(err)
		fmt.Printf("d %d %d\n", now, about.Sequence.Stream)
		go func() {
			limited, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if message.DoubleAck(limited) == nil {
				fmt.Printf("a %d\n", about.Sequence.Stream)
			}
		}()
	})
	check(err)
	select {}
}
