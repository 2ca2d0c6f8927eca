import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const [url, count] = process.argv.slice(2);
const connection = await connect({ servers: url });
const consumer = await jetstream(connection).consumers.get("jobs", "resize");
let left = Number(count);
for await (const message of await consumer.consume({ max_messages: 1 })) {
  console.log("node", message.string());
  await message.ackAck();
  if (--left === 0) {
    break;
  }
}
await connection.close();
