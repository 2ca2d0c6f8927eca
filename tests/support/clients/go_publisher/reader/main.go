// Reads a stream with the pull ordered consumer of nats.go, and tells what it gets.
//
// Arguments: URLs of servers with commas between them, and the stream. Each line of the output is a
// message, `{"offset", "value"}`. It reads until its input ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type record struct {
	Offset uint64 `json:"offset"`
	Value  string `json:"value"`
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "go reader:", err)
	os.Exit(1)
}

func main() {
	connection, err := nats.Connect(
		os.Args[1], nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
	)
	if err != nil {
		fail(err)
	}
	stream, err := jetstream.New(connection)
	if err != nil {
		fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	consumer, err := stream.OrderedConsumer(
		ctx, os.Args[2], jetstream.OrderedConsumerConfig{MaxResetAttempts: -1},
	)
	if err != nil {
		fail(err)
	}
	output := json.NewEncoder(os.Stdout)
	reading, err := consumer.Consume(
		func(message jetstream.Msg) {
			about, err := message.Metadata()
			if err != nil {
				fail(err)
			}
			one := record{Offset: about.Sequence.Stream, Value: string(message.Data())}
			if err := output.Encode(one); err != nil {
				fail(err)
			}
		},
		jetstream.PullHeartbeat(500*time.Millisecond),
		jetstream.PullExpiry(2*time.Second),
		jetstream.PullMaxMessages(20),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			fmt.Fprintln(os.Stderr, "go reader:", err)
		}),
	)
	if err != nil {
		fail(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	reading.Stop()
	connection.Close()
}
