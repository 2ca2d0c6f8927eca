// Publishes messages at a fixed rate without waiting for acks, and follows them with ordered
// consumers of nats.go, ten on each connection.
//
// Arguments: URL of a server, stream, subject, number of consumers, messages a second, number of
// messages, size of a message. The first 8 bytes of a message are the time at which it was sent, in
// ns. Prints the median and the 99th percentile of the time from sending to delivery in
// microseconds, and the number of deliveries. Without consumers it only publishes, and prints zeros.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	perConnection = 10
	patience      = 10 * time.Second
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go follower:", err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func connect(url string) *nats.Conn {
	connection, err := nats.Connect(url)
	check(err)
	return connection
}

func main() {
	url, stream, subject := os.Args[1], os.Args[2], os.Args[3]
	consumers, rate := number(os.Args[4]), number(os.Args[5])
	count, size := number(os.Args[6]), number(os.Args[7])
	waits := make([][]time.Duration, consumers)
	var delivered atomic.Int64
	var all sync.WaitGroup
	var connection *nats.Conn
	for one := range consumers {
		if one%perConnection == 0 {
			connection = connect(url)
		}
		api, err := jetstream.New(connection)
		check(err)
		limited, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		consumer, err := api.OrderedConsumer(
			limited, stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
		check(err)
		all.Add(1)
		_, err = consumer.Consume(func(message jetstream.Msg) {
			sent := int64(binary.LittleEndian.Uint64(message.Data()))
			waits[one] = append(waits[one], time.Duration(time.Now().UnixNano()-sent))
			delivered.Add(1)
			if len(waits[one]) == count {
				all.Done()
			}
		})
		check(err)
	}
	time.Sleep(time.Second) // the pulls of all consumers arrive
	publisher := connect(url)
	began := time.Now()
	for i := range count {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		body := make([]byte, size)
		binary.LittleEndian.PutUint64(body, uint64(time.Now().UnixNano()))
		check(publisher.Publish(subject, body))
	}
	check(publisher.Flush())
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		fmt.Fprintln(os.Stderr, "go follower: only", delivered.Load(), "deliveries")
		os.Exit(1)
	}
	each := slices.Concat(waits...)
	slices.Sort(each)
	if len(each) == 0 {
		each = []time.Duration{0}
	}
	fmt.Println(each[len(each)/2].Microseconds(), each[len(each)*99/100].Microseconds(), delivered.Load())
}
