// Receives and acks messages of a durable consumer with `consume` of the client for Node.
//
// Arguments: URL of a server, stream, consumer, number of messages. Prints the seconds until the
// last of them is acked.
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const [url, stream, name, count] = process.argv.slice(2);
const connection = await connect({ servers: url });
const consumer = await jetstream(connection).consumers.get(stream, name);
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
