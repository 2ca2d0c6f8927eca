// The messages of a channel of NATS Streaming as JSON lines, for into_liftlog.py.
//
//	go mod init copying && go mod tidy
//	go run from_nats_streaming.go -cluster test-cluster -channel orders -from 1
//
// It copies the messages that are in the channel when it starts, and ends when none arrived for a while.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/stan.go"
)

type line struct {
	Sequence uint64    `json:"sequence"`
	Subject  string    `json:"subject"`
	Value    []byte    `json:"value"` // encoded as base64
	Time     time.Time `json:"time"`
}

func main() {
	url := flag.String("nats", "nats://127.0.0.1:4222", "NATS URL of the server")
	cluster := flag.String("cluster", "test-cluster", "cluster id")
	channel := flag.String("channel", "", "its name")
	from := flag.Uint64("from", 1, "sequence of the first message")
	idle := flag.Duration("idle", 5*time.Second, "end when nothing came for so long")
	flag.Parse()

	connection, err := stan.Connect(*cluster, fmt.Sprintf("copy-%d", os.Getpid()), stan.NatsURL(*url))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	messages := make(chan *stan.Msg, 1024)
	_, err = connection.Subscribe(*channel, func(message *stan.Msg) { messages <- message },
		stan.StartAtSequence(*from))
	if err != nil {
		log.Fatal(err)
	}
	output := json.NewEncoder(os.Stdout)
	count, expected := 0, *from
	for {
		select {
		case message := <-messages:
			if message.Sequence < expected {
				continue
			}
			value := message.Data
			if value == nil {
				value = []byte{} // null would be a tombstone
			}
			written := line{message.Sequence, *channel, value, time.Unix(0, message.Timestamp).UTC()}
			if err := output.Encode(written); err != nil {
				log.Fatal(err)
			}
			count, expected = count+1, message.Sequence+1
		case <-time.After(*idle):
			fmt.Fprintf(os.Stderr, "%d messages of %s\n", count, *channel)
			return
		}
	}
}
