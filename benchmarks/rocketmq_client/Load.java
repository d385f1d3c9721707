import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Load by RocketMQ's own client, with its own deadlines of 3 s: java Load.java HOST:PORT SECONDS PLAY...
 *
 * A PLAY is KIND:COUNT:TOPIC, and each prints a line of JSON. KIND: plain or transactional, sent by COUNT threads of one
 * producer; with +consumer, while a push consumer takes them; clients: COUNT clients that start at once.
 */
public class Load {
    private static final int BODY_SIZE = 200;
    private static final int SENDS_OF_A_CLIENT = 20;
    private static final long ARRIVE_S_MAX = 60;
    private static final int ATTEMPTS_MAX = 20;

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration where;
    private final double seconds;
    private final Set<String> sent = ConcurrentHashMap.newKeySet();
    private final Set<String> arrived = ConcurrentHashMap.newKeySet();

    Load(String endpoints, double seconds) {
        where = ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(false).build();
        this.seconds = seconds;
    }

    public static void main(String[] words) throws Exception {
        Load load = new Load(words[0], Double.parseDouble(words[1]));
        for (String play : Arrays.asList(words).subList(2, words.length)) {
            String[] parts = play.split(":");
            load.play(parts[0], Integer.parseInt(parts[1]), parts[2]);
        }
        System.exit(0); // a client that could not start leaves threads behind
    }

    /** Retry until a newly created topic is known everywhere. */
    private static <T> T insist(Callable<T> make) throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                return make.call();
            } catch (ClientException | IllegalStateException failure) {
                if (attempt == ATTEMPTS_MAX) {
                    throw failure;
                }
                Thread.sleep(500);
            }
        }
    }

    private void play(String kind, int count, String topic) throws Exception {
        sent.clear();
        arrived.clear();
        if (kind.equals("clients")) {
            insist(() -> producer(topic)).close();
            clients(count, topic);
        } else if (kind.endsWith("+consumer")) {
            try (PushConsumer consumer = insist(() -> consumer(topic))) {
                send(kind, count, topic);
            }
        } else {
            send(kind, count, topic);
        }
    }

    /** The results of the threads. */
    private static class Done {
        final List<Long> tookNs = new ArrayList<>();
        long failed;

        void add(Done other) {
            tookNs.addAll(other.tookNs);
            failed += other.failed;
        }

        double ms(double share) {
            return tookNs.isEmpty() ? 0 : tookNs.get((int) (share * (tookNs.size() - 1))) / 1e6;
        }
    }

    private void send(String kind, int count, String topic) throws Exception {
        boolean transactional = kind.startsWith("transactional");
        try (Producer producer = insist(() -> producer(topic))) {
            long until = System.nanoTime() + (long) (seconds * 1e9);
            long began = System.nanoTime();
            Done all = atOnce(count, () -> {
                Done done = new Done();
                for (long start = System.nanoTime(); start < until; start = System.nanoTime()) {
                    sendOne(producer, topic, transactional, done, start);
                }
                return done;
            });
            double took = (System.nanoTime() - began) / 1e9;
            int inTime = arrived.size();
            int missing = kind.endsWith("+consumer") ? missing() : 0;
            tell(kind, count, took, all, String.format(Locale.ROOT,
                "\"consumed_per_s\": %.1f, \"missing\": %d", inTime / took, missing));
        }
    }

    private void sendOne(Producer producer, String topic, boolean transactional, Done done, long start) {
        try {
            if (transactional) {
                Transaction transaction = producer.beginTransaction();
                sent.add(producer.send(message(topic), transaction).getMessageId().toString());
                transaction.commit();
            } else {
                sent.add(producer.send(message(topic)).getMessageId().toString());
            }
            done.tookNs.add(System.nanoTime() - start);
        } catch (ClientException | RuntimeException failure) { // some of gRPC's come as they are
            if (done.failed++ == 0) {
                System.err.println(failure);
            }
        }
    }

    /** Half of the clients send, the others receive: all start at once, and then those that started send at once. */
    private void clients(int count, String topic) throws Exception {
        List<Producer> producers = new ArrayList<>();
        List<PushConsumer> consumers = new ArrayList<>();
        AtomicLong number = new AtomicLong();
        long began = System.nanoTime();
        Done starts = atOnce(count, () -> {
            Done done = new Done();
            long start = System.nanoTime();
            try {
                if (number.getAndIncrement() % 2 == 0) {
                    Producer producer = producer(topic);
                    synchronized (producers) {
                        producers.add(producer);
                    }
                } else {
                    PushConsumer consumer = consumer(topic);
                    synchronized (consumers) {
                        consumers.add(consumer);
                    }
                }
                done.tookNs.add(System.nanoTime() - start);
            } catch (Exception failure) {
                System.err.println(failure);
                done.failed++;
            }
            return done;
        });
        tell("start", count, (System.nanoTime() - began) / 1e9, starts, "\"missing\": 0");
        number.set(0);
        began = System.nanoTime();
        Done sends = atOnce(producers.size(), () -> {
            Producer producer = producers.get((int) number.getAndIncrement());
            Done done = new Done();
            for (int each = 0; each < SENDS_OF_A_CLIENT; each++) {
                sendOne(producer, topic, false, done, System.nanoTime());
            }
            return done;
        });
        double took = (System.nanoTime() - began) / 1e9;
        tell("send", producers.size(), took, sends,
            "\"missing\": " + (consumers.isEmpty() ? 0 : missing()));
        for (Producer producer : producers) {
            producer.close();
        }
        atOnce(consumers.size(), () -> {
            PushConsumer consumer;
            synchronized (consumers) {
                consumer = consumers.remove(0);
            }
            consumer.close(); // waits for its long polls
            return new Done();
        });
    }

    /** Return the number of sent messages that have not arrived after a minute. */
    private int missing() throws InterruptedException {
        long until = System.nanoTime() + ARRIVE_S_MAX * 1_000_000_000;
        while (!arrived.containsAll(sent) && System.nanoTime() < until) {
            Thread.sleep(20);
        }
        sent.removeAll(arrived);
        return sent.size();
    }

    private Producer producer(String topic) throws ClientException {
        return provider.newProducerBuilder().setClientConfiguration(where).setTopics(topic)
            .setTransactionChecker(message -> TransactionResolution.COMMIT).build();
    }

    private PushConsumer consumer(String topic) throws ClientException {
        return provider.newPushConsumerBuilder().setClientConfiguration(where).setConsumerGroup("bench")
            .setSubscriptionExpressions(Map.of(topic, new FilterExpression("*")))
            .setMessageListener(message -> {
                arrived.add(message.getMessageId().toString());
                return ConsumeResult.SUCCESS;
            }).build();
    }

    private Message message(String topic) {
        byte[] body = "x".repeat(BODY_SIZE).getBytes(StandardCharsets.UTF_8);
        return provider.newMessageBuilder().setTopic(topic).setBody(body).build();
    }

    private static Done atOnce(int count, Callable<Done> work) throws Exception {
        Done all = new Done();
        if (count == 0) {
            return all;
        }
        CyclicBarrier ready = new CyclicBarrier(count);
        ExecutorService threads = Executors.newFixedThreadPool(count);
        List<Future<Done>> running = new ArrayList<>();
        for (int each = 0; each < count; each++) {
            running.add(threads.submit(() -> {
                ready.await();
                return work.call();
            }));
        }
        for (Future<Done> each : running) {
            all.add(each.get());
        }
        threads.shutdown();
        all.tookNs.sort(null);
        return all;
    }

    private static void tell(String play, int count, double took, Done done, String more) {
        System.out.printf(Locale.ROOT,
            "{\"play\": \"%s\", \"count\": %d, \"per_s\": %.1f, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"max_ms\": %.2f, "
                + "\"failed\": %d, \"seconds\": %.2f, %s}%n",
            play, count, done.tookNs.size() / took, done.ms(0.5), done.ms(0.99), done.ms(1), done.failed, took, more);
    }
}
