// A publisher as users of Liftbridge's Go client write one: NewMessage, publish on NATS, wait for
// the ack, UnmarshalAck. It publishes what it reads as JSON lines and says what it believes then.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	lift "github.com/liftbridge-io/go-liftbridge/v2"
	"github.com/nats-io/nats.go"
)

type wish struct {
	Subject        string            `json:"subject"`
	Value          []byte            `json:"value"`
	Key            []byte            `json:"key"`
	Headers        map[string][]byte `json:"headers"`
	CorrelationID  string            `json:"correlation_id"`
	ExpectedOffset *int64            `json:"expected_offset"`
	AckAll         bool              `json:"ack_all"`
	TimeoutMillis  int               `json:"timeout_ms"`
}

type belief struct {
	Error         string `json:"error,omitempty"`
	Stream        string `json:"stream,omitempty"`
	Offset        int64  `json:"offset"`
	CorrelationID string `json:"correlation_id,omitempty"`
}

func publish(conn *nats.Conn, wanted wish) belief {
	inbox := nats.NewInbox()
	acks, err := conn.SubscribeSync(inbox)
	if err != nil {
		return belief{Error: err.Error()}
	}
	defer acks.Unsubscribe()
	options := []lift.MessageOption{lift.AckInbox(inbox), lift.CorrelationID(wanted.CorrelationID)}
	if wanted.Key != nil {
		options = append(options, lift.Key(wanted.Key))
	}
	for name, value := range wanted.Headers {
		options = append(options, lift.Header(name, value))
	}
	if wanted.ExpectedOffset != nil {
		options = append(options, lift.ExpectedOffset(*wanted.ExpectedOffset))
	}
	if wanted.AckAll {
		options = append(options, lift.AckPolicyAll())
	}
	if err := conn.Publish(wanted.Subject, lift.NewMessage(wanted.Value, options...)); err != nil {
		return belief{Error: err.Error()}
	}
	answer, err := acks.NextMsg(time.Duration(wanted.TimeoutMillis) * time.Millisecond)
	if err != nil {
		return belief{Error: err.Error()}
	}
	ack, err := lift.UnmarshalAck(answer.Data)
	if err != nil {
		return belief{Error: err.Error()}
	}
	return belief{Stream: ack.Stream(), Offset: ack.Offset(), CorrelationID: ack.CorrelationID()}
}

func main() {
	conn, err := nats.Connect(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer conn.Close()
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var wanted wish
		if err := json.Unmarshal(line, &wanted); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		answers.Encode(publish(conn, wanted))
	}
}
