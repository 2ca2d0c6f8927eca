// Receives and acks messages of a durable consumer with `consume` of the client for Node.
//
// Arguments: URL of a server, stream, consumer, number of messages. Prints the seconds until the
// last of them is acked. With the number 0 it runs until it is killed, and waits for the answer to
// each ack. For each delivery it then prints "d", the time in ns since 1970 and the sequence, and
// for each answer "a" and the sequence.
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const [url, stream, name, count] = process.argv.slice(2);
const connection = await connect({ servers: url });
const consumer = await jetstream(connection).consumers.get(stream, name);
if (Number(count) === 0) {
  for await (const message of await consumer.consume()) {
    console.log(`d ${Date.now()}000000 ${message.seq}`);
    message.ackAck({ timeout: 10000 }).then((done) => {
      if (done) {
        console.log(`a ${message.seq}`);
      }
    }, () => {});
  }
}
const began = performance.now();
let got = 0;
for await (const message of await consumer.consume()) {
  message.ack();
  if (++got === Number(count)) {
    break;
  }
}
await connection.flush();
console.log((performance.now() - began) / 1000);
await connection.close();
