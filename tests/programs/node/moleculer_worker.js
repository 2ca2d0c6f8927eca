"use strict";
// A service of Moleculer with a channel: a push consumer with a queue group.

const fs = require("fs");
const { ServiceBroker } = require("moleculer");
const channels = require("@moleculer/channels");

const [server, done] = process.argv.slice(2);

const broker = new ServiceBroker({
  logger: { type: "Console", options: { level: "warn" } },
  middlewares: [
    channels.Middleware({
      adapter: {
        type: "NATS",
        options: { nats: { url: server }, maxInFlight: 20, maxRetries: 1000 },
      },
    }),
  ],
});

broker.createService({
  name: "billing",
  channels: {
    "programs.moleculer": {
      group: "billing",
      nats: { consumerOptions: { config: { deliver_policy: "all", ack_wait: 3e9 } } },
      async handler(message) {
        if (Math.random() < 0.1) throw new Error("a random failure");
        fs.appendFileSync(done, `${message.number}\n`);
      },
    },
  },
});

broker.start();
