import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/** As guest_consumer.py: java GuestConsumer TOLD. A push consumer among those of txmsg, and a simple one. */
public class GuestConsumer {
    private static final int PULLERS = 6;
    private static final int PULLED_MAX = 16;
    private static final Duration AWAIT = Duration.ofSeconds(1);
    /** Messages that waited this long for a thread are refused: their lease may have expired. */
    private static final long LATE_MS = 2000;
    private static final long PAUSE_MS = 200;

    private final AtomicLong calls = new AtomicLong();
    private final Told told;
    private final Journal journal;

    GuestConsumer(Told told) throws Exception {
        this.told = told;
        journal = new Journal(told.journal);
    }

    public static void main(String[] words) throws Exception {
        Places.install();
        new GuestConsumer(Told.of(words)).run();
    }

    private void run() throws Exception {
        Told.started(() -> Told.PROVIDER.newPushConsumerBuilder().setClientConfiguration(told.configuration())
            .setConsumerGroup(told.pushed).setSubscriptionExpressions(Told.allOf(told.topics))
            .setMessageListener(this::handle).build());
        SimpleConsumer puller = Told.started(() -> Told.PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(told.configuration()).setConsumerGroup(told.pulled).setAwaitDuration(AWAIT)
            .setSubscriptionExpressions(Told.allOf(told.pulledTopics)).build());
        for (Thread thread : Told.inThreads(PULLERS, number -> pull(puller))) {
            thread.join(); // until it is killed
        }
    }

    private ConsumeResult handle(MessageView message) {
        if (System.currentTimeMillis() - ((MessageViewImpl) message).getDecodeTimestamp() > LATE_MS) {
            return ConsumeResult.FAILURE;
        }
        long call = got(told.pushed, message);
        boolean isDone = !Business.isDisliked(bytesOf(message), message.getDeliveryAttempt());
        ended(call, isDone);
        return isDone ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    }

    /** Receive, handle and acknowledge for ever. Messages not handled in time are redelivered. */
    private void pull(SimpleConsumer consumer) throws InterruptedException {
        Duration held = Duration.ofMillis((long) (told.heldS * 1000));
        while (true) {
            long began = System.nanoTime();
            List<MessageView> messages;
            try {
                messages = consumer.receive(PULLED_MAX, held);
            } catch (ClientException | RuntimeException away) {
                Thread.sleep(PAUSE_MS);
                continue;
            }
            for (MessageView message : messages) {
                if (System.nanoTime() - began > held.toNanos() / 2) {
                    break;
                }
                ended(got(told.pulled, message), true);
                try {
                    consumer.ack(message);
                } catch (ClientException | RuntimeException away) {
                    continue; // it comes again
                }
            }
        }
    }

    /** Record a delivery and return the number of the call. */
    private long got(String group, MessageView message) {
        long call = calls.incrementAndGet();
        journal.write("got", call, group, new String(bytesOf(message), StandardCharsets.UTF_8), message.getTopic(),
            Integer.valueOf(message.getProperties().get(Places.QUEUE)), ((MessageViewImpl) message).getOffset(),
            message.getDeliveryAttempt());
        return call;
    }

    private void ended(long call, boolean isDone) {
        journal.write(isDone ? "done" : "refused", call);
    }

    private static byte[] bytesOf(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return bytes;
    }
}
