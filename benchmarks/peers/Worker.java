import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** The same work as worker.py has, with Pulsar's Java client. */
public final class Worker {
    private static final int CONSUMERS = 3;
    private static final int BYTES = 100;
    private static final int KEYS = 1_000;
    private static final long DUE_IN_MS = 4_000;
    private static final long REJECTED_FOR_MS = 1_000;
    private static final long LONGEST_S = 120;

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                Scanner input = new Scanner(System.in)) {
            while (input.hasNext()) {
                String kind = input.next();
                System.out.println("seconds: " + seconds(client, kind, input.nextInt()));
            }
        }
    }

    private static double seconds(PulsarClient client, String kind, int messages) throws Exception {
        String topic = kind + "-" + UUID.randomUUID();
        boolean keyed = kind.equals("Key_Shared");
        boolean delayed = kind.equals("delayed");
        AtomicInteger left = new AtomicInteger(messages);
        CountDownLatch done = new CountDownLatch(1);
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < CONSUMERS; number++) {
            Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                    .subscriptionType(keyed ? SubscriptionType.Key_Shared : SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(REJECTED_FOR_MS, TimeUnit.MILLISECONDS)
                    .subscribe();
            consumers.add(consumer);
            threads.add(new Thread(() -> consume(consumer, kind, left, done)));
        }
        Producer<byte[]> producer = client.newProducer().topic(topic)
                .enableBatching(!delayed).maxPendingMessages(10_000).blockIfQueueFull(true)
                .batcherBuilder(keyed ? BatcherBuilder.KEY_BASED : BatcherBuilder.DEFAULT)
                .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS)
                .create();
        threads.forEach(Thread::start);
        long begunMs = System.currentTimeMillis();
        long dueMs = begunMs + DUE_IN_MS;
        byte[] payload = new byte[BYTES];
        for (int number = 0; number < messages; number++) {
            TypedMessageBuilder<byte[]> message = producer.newMessage().value(payload);
            if (keyed) {
                message.key(Integer.toString(number % KEYS));
            }
            if (delayed) {
                message.deliverAt(dueMs);
            }
            message.sendAsync();
        }
        producer.flush();
        if (delayed) {
            begunMs = dueMs;
            if (System.currentTimeMillis() > dueMs) {
                throw new IllegalStateException("it took too long to send what is delayed");
            }
        }
        if (!done.await(LONGEST_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.get() + " messages were not acknowledged");
        }
        double took = (System.currentTimeMillis() - begunMs) / 1000.0;
        for (Thread thread : threads) {
            thread.join();
        }
        producer.close();
        for (Consumer<byte[]> consumer : consumers) {
            consumer.close();
        }
        return took;
    }

    private static void consume(
            Consumer<byte[]> consumer, String kind, AtomicInteger left, CountDownLatch done) {
        boolean rejects = kind.equals("redelivered");
        try {
            while (done.getCount() > 0) {
                Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                if (rejects && message.getRedeliveryCount() == 0) {
                    consumer.negativeAcknowledge(message);
                    continue;
                }
                consumer.acknowledgeAsync(message);
                if (left.decrementAndGet() == 0) {
                    done.countDown();
                }
            }
        } catch (PulsarClientException error) {
            throw new IllegalStateException(error);
        }
    }
}
