// Receives and acks messages of a durable consumer with the `messages` of async-nats.
//
// Arguments: URL of a server, stream, consumer, number of messages. Prints the seconds until the
// last of them is acked. With the number 0 it runs until it is killed, and waits for the answer to
// each ack. For each delivery it then prints "d", the time in ns since 1970 and the sequence, and
// for each answer "a" and the sequence. Errors of the stream of messages, such as missing
// heartbeats, do not end it.
use std::time::{Duration, Instant, SystemTime};

use async_nats::jetstream::{self, consumer::PullConsumer};
use futures_util::StreamExt;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count: u64 = arguments[3].parse()?;
    let client = async_nats::connect(&arguments[0]).await?;
    let stream = jetstream::new(client.clone()).get_stream(&arguments[1]).await?;
    let consumer: PullConsumer = stream.get_consumer(&arguments[2]).await?;
    let began = Instant::now();
    let mut messages = consumer.messages().await?;
    let mut got = 0;
    while let Some(next) = messages.next().await {
        let Ok(message) = next else { continue };
        if count == 0 {
            watch(message);
            continue;
        }
        message.ack().await?;
        got += 1;
        if got == count {
            break;
        }
    }
    client.flush().await?;
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}

fn watch(message: jetstream::Message) {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    let sequence = message.info().map_or(0, |about| about.stream_sequence);
    println!("d {now} {sequence}");
    tokio::spawn(async move {
        let acked = tokio::time::timeout(Duration::from_secs(10), message.double_ack()).await;
        if matches!(acked, Ok(Ok(()))) {
            println!("a {sequence}");
        }
    });
}
