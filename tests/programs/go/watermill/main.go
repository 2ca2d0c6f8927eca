// A subscriber of Watermill with its JetStream backend, and nothing set but the queue group and the
// name of the durable consumer.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	client "github.com/nats-io/nats.go"
)

func main() {
	server, path := os.Args[1], os.Args[2]
	done, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	subscriber, err := nats.NewSubscriber(nats.SubscriberConfig{
		URL:              server,
		QueueGroupPrefix: "billing",
		SubscribersCount: 2,
		AckWaitTimeout:   3 * time.Second,
		NakDelay:         nats.NewStaticDelay(200 * time.Millisecond),
		CloseTimeout:     5 * time.Second,
		Unmarshaler:      &nats.NATSMarshaler{},
		NatsOptions: []client.Option{
			client.MaxReconnects(-1), client.ReconnectWait(200 * time.Millisecond),
		},
		JetStream: nats.JetStreamConfig{
			AutoProvision: true,
			DurablePrefix: "billing",
			DurableCalculator: func(prefix, topic string) string { return prefix },
		},
	}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := subscriber.Subscribe(context.Background(), "programs_watermill")
	if err != nil {
		log.Fatal(err)
	}
	for message := range messages {
		var body struct{ Number int }
		if rand.Intn(10) == 0 {
			message.Nack()
			continue
		}
		if err := json.Unmarshal(message.Payload, &body); err != nil {
			log.Fatal(err)
		}
		fmt.Fprintln(done, body.Number)
		message.Ack()
	}
}
