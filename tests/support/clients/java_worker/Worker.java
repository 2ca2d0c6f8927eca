// Receives and acks messages of a durable consumer with `consume` of nats.java.
//
// Arguments: URL of a server, stream, consumer, number of messages. Prints the seconds until the
// last of them is acked. With the number 0 it runs until it is killed, and waits for the answer to
// each ack. For each delivery it then prints "d", the time in ns since 1970 and the sequence, and
// for each answer "a" and the sequence.
import io.nats.client.Connection;
import io.nats.client.ConsumerContext;
import io.nats.client.MessageConsumer;
import io.nats.client.Message;
import io.nats.client.Nats;
import io.nats.client.Options;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

public class Worker {
    public static void main(String[] arguments) throws Exception {
        Options options = new Options.Builder().server(arguments[0]).maxReconnects(-1).build();
        Connection connection = Nats.connect(options);
        ConsumerContext consumer = connection.getConsumerContext(arguments[1], arguments[2]);
        long count = Long.parseLong(arguments[3]);
        if (count == 0) {
            watch(consumer);
            return;
        }
        CountDownLatch left = new CountDownLatch((int) count);
        long began = System.nanoTime();
        MessageConsumer consuming = consumer.consume(message -> {
            message.ack();
            left.countDown();
        });
        if (!left.await(120, TimeUnit.SECONDS)) {
            System.err.println("Java worker: " + left.getCount() + " messages are missing");
            System.exit(1);
        }
        connection.flush(Duration.ofSeconds(10));
        System.out.println((System.nanoTime() - began) / 1e9);
        consuming.close();
        connection.close();
    }

    private static void watch(ConsumerContext consumer) throws Exception {
        ExecutorService acks = Executors.newCachedThreadPool();
        consumer.consume(message -> {
            long sequence = message.metaData().streamSequence();
            System.out.println("d " + System.currentTimeMillis() + "000000 " + sequence);
            acks.execute(() -> ack(message, sequence));
        });
        Thread.sleep(Long.MAX_VALUE);
    }

    private static void ack(Message message, long sequence) {
        try {
            message.ackSync(Duration.ofSeconds(10));
            System.out.println("a " + sequence);
        } catch (Exception error) {
            // the message is delivered again
        }
    }
}
