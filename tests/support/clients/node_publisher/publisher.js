// Publishes what it is told to with the NATS clients for Node, and tells what was acked.
// Arguments, input and output as in ../go_publisher/main.go.

import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import { jetstream } from '@nats-io/jetstream';
import { connect } from '@nats-io/transport-node';

const PAUSE_MS = 50;
const PATIENCE_MS = 20_000;

const [servers, seconds] = process.argv.slice(2);
const timeout = 1000 * Number(seconds);
const connection = await connect({
  servers: servers.split(','),
  maxReconnectAttempts: -1,
  reconnectTimeWait: 100,
  waitOnFirstConnect: true,
});
const stream = jetstream(connection, { timeout });

function tell(answer) {
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}

function host() {
  return new URL(`nats://${connection.getServer()}`).hostname;
}

async function publish({ number, subject, id, value }) {
  for (;;) {
    try {
      const ack = await stream.publish(subject, value, { msgID: id, timeout });
      tell({ number, offset: ack.seq, server: host() });
      return;
    } catch (error) {
      tell({ number, error: String(error) });
      await sleep(PAUSE_MS);
    }
  }
}

const waiting = new Set();
for await (const line of createInterface({ input: process.stdin })) {
  const one = publish(JSON.parse(line));
  waiting.add(one);
  one.then(() => waiting.delete(one));
}
setTimeout(() => {
  console.error('node publisher: not everything was acked');
  process.exit(1);
}, PATIENCE_MS).unref();
await Promise.all(waiting);
await connection.close();
