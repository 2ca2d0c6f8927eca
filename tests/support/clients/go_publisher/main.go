// Publishes what it is told to with nats.go, and tells what was acked.
//
// Arguments: URLs of servers with commas between them, and the seconds after which an attempt is
// given up. Each line of the input is a message, `{"number", "subject", "id", "value"}`; it is
// published with its id until it is acked. Each line of the output is an ack, `{"number", "offset",
// "server"}`, or an attempt that failed, `{"number", "error"}`. Messages of even number take
// `Publish`, the others `PublishAsync`. After the end of its input the program waits a while for
// what is not acked.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	pause    = 50 * time.Millisecond
	patience = 20 * time.Second
)

type message struct {
	Number  int    `json:"number"`
	Subject string `json:"subject"`
	ID      string `json:"id"`
	Value   string `json:"value"`
}

type answer struct {
	Number int    `json:"number"`
	Offset uint64 `json:"offset,omitempty"`
	Server string `json:"server,omitempty"`
	Error  string `json:"error,omitempty"`
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "go publisher:", err)
	os.Exit(1)
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		fail(err)
	}
	timeout := time.Duration(seconds * float64(time.Second))
	connection, err := nats.Connect(
		os.Args[1],
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond),
		nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	)
	if err != nil {
		fail(err)
	}
	stream, err := jetstream.New(connection, jetstream.WithPublishAsyncTimeout(timeout))
	if err != nil {
		fail(err)
	}
	answers := make(chan answer, 1024)
	told := make(chan struct{})
	go tell(answers, told)

	var waiting sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var one message
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			fail(err)
		}
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			for {
				offset, err := publish(stream, one, timeout)
				if err == nil {
					answers <- answer{Number: one.Number, Offset: offset, Server: host(connection)}
					return
				}
				answers <- answer{Number: one.Number, Error: err.Error()}
				time.Sleep(pause)
			}
		}()
	}
	time.AfterFunc(patience, func() { fail(errors.New("not everything was acked")) })
	waiting.Wait()
	close(answers)
	<-told
	connection.Close()
}

func publish(stream jetstream.JetStream, one message, timeout time.Duration) (uint64, error) {
	value, id := []byte(one.Value), jetstream.WithMsgID(one.ID)
	if one.Number%2 == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		ack, err := stream.Publish(ctx, one.Subject, value, id)
		if err != nil {
			return 0, err
		}
		return ack.Sequence, nil
	}
	future, err := stream.PublishAsync(one.Subject, value, id)
	if err != nil {
		return 0, err
	}
	select {
	case ack := <-future.Ok():
		return ack.Sequence, nil
	case err := <-future.Err():
		return 0, err
	}
}

func host(connection *nats.Conn) string {
	if found, err := url.Parse(connection.ConnectedUrl()); err == nil {
		return found.Hostname()
	}
	return ""
}

func tell(answers <-chan answer, told chan<- struct{}) {
	defer close(told)
	output := json.NewEncoder(os.Stdout)
	for one := range answers {
		if err := output.Encode(one); err != nil {
			fail(err)
		}
	}
}
