// A worker as those of Argo Events: it fetches one message at a time from a named consumer, works,
// and waits for the answer to its ack.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"math/rand"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

const stream, subject, consumer = "programs_acksync", "programs.acksync", "billing"

func main() {
	server, path := os.Args[1], os.Args[2]
	done, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	connection, err := nats.Connect(server, nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	js, err := connection.JetStream()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := js.AddStream(&nats.StreamConfig{Name: stream, Subjects: []string{subject}}); err != nil {
		log.Fatal(err)
	}
	subscription, err := js.PullSubscribe(subject, consumer, nats.BindStream(stream),
		nats.AckWait(3*time.Second), nats.MaxAckPending(100))
	if err != nil {
		log.Fatal(err)
	}
	for {
		messages, err := subscription.Fetch(1, nats.MaxWait(5*time.Second))
		if err != nil {
			continue
		}
		for _, message := range messages {
			work(message, done)
		}
	}
}

func work(message *nats.Msg, done *os.File) {
	if rand.Intn(10) == 0 {
		message.Nak()
		return
	}
	var body struct{ Number int }
	if err := json.Unmarshal(message.Data, &body); err != nil {
		message.Term()
		return
	}
	fmt.Fprintln(done, body.Number)
	if err := message.AckSync(); err != nil {
		log.Print("no answer to an ack: ", err)
	}
}
