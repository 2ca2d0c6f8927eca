// Creates a bucket if it is missing, and gets or puts its keys with nats.go, several connections and operations at a time.
//
// Arguments: URL of a server, bucket, `get` or `put`, connections, operations under way on each
// connection, number of operations, number of keys, size of a value. Prints the seconds that they
// took and the median latency in microseconds. Each operation must be answered, and each value that
// a get returns must have the right size.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const patience = 10 * time.Second

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go kv:", err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func main() {
	url, bucket, kind := os.Args[1], os.Args[2], os.Args[3]
	connections, inFlight, count := number(os.Args[4]), number(os.Args[5]), number(os.Args[6])
	keys, size := number(os.Args[7]), number(os.Args[8])
	value := make([]byte, size)
	operation := func(kv jetstream.KeyValue, key string) error {
		limited, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if kind == "put" {
			_, err := kv.Put(limited, key, value)
			return err
		}
		entry, err := kv.Get(limited, key)
		if err == nil && len(entry.Value()) != size {
			err = fmt.Errorf("%s has %d bytes", key, len(entry.Value()))
		}
		return err
	}
	workers := connections * inFlight
	stores := make([]jetstream.KeyValue, 0, connections)
	for range connections {
		connection, err := nats.Connect(url)
		check(err)
		defer connection.Close()
		stream, err := jetstream.New(connection)
		check(err)
		kv, err := stream.CreateOrUpdateKeyValue(
			context.Background(), jetstream.KeyValueConfig{Bucket: bucket})
		check(err)
		stores = append(stores, kv)
	}
	took := make([][]time.Duration, workers)
	var all sync.WaitGroup
	began := time.Now()
	for worker := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := worker; i < count; i += workers {
				start := time.Now()
				check(operation(stores[worker%connections], "key."+strconv.Itoa(i*7919%keys)))
				took[worker] = append(took[worker], time.Since(start))
			}
		}()
	}
	all.Wait()
	seconds := time.Since(began).Seconds()
	each := slices.Concat(took...)
	slices.Sort(each)
	fmt.Println(seconds, each[len(each)/2].Microseconds())
}
