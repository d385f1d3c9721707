import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.List;
import java.util.Objects;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;

/** One of the threads of a producer that call, as in guest_producer.py. */
final class Caller {
    /** Share of messages with the tag. */
    private static final double RARE = 0.1;
    private static final String COMMIT = "commit";
    private static final String ROLLBACK = "rollback";

    private final Told told;
    private final Journal journal;
    private final Business business;
    private final Producer producer;
    private final List<String> plainTopics;
    private final String name;
    private final Random random;
    private int serials;

    Caller(Told told, Journal journal, Business business, Producer producer, int number) {
        this.told = told;
        this.journal = journal;
        this.business = business;
        this.producer = producer;
        plainTopics = told.topics.stream().filter(topic -> !topic.equals(told.storyTopic)).toList();
        name = told.name + "." + number;
        random = new Random(Objects.hash(told.seed, name));
    }

    /** Call until told to stop. */
    void run(double ratePerS) throws InterruptedException {
        do {
            int luck = random.nextInt(10);
            if (luck < 4) {
                note("plain", oneOf(plainTopics), 0, "", this::send);
            } else if (luck < 5) {
                note("plain", oneOf(plainTopics), 0.2 + 2.8 * random.nextDouble(), "", this::send);
            } else if (luck < 9) {
                note("classic", oneOf(told.halfTopics), 0, "", this::play);
            } else {
                tellStory();
            }
        } while (!told.quiet.await((long) (2e3 * random.nextDouble() / ratePerS), TimeUnit.MILLISECONDS));
    }

    /** Send several messages of one message group, each after the call before has returned. */
    private void tellStory() {
        String key = serial() + " „Müller“";
        for (int left = 3 + random.nextInt(4); left > 0; left--) {
            note("plain", told.storyTopic, 0, key, this::send);
        }
    }

    private String serial() {
        return name + "." + ++serials;
    }

    private String oneOf(List<String> choices) {
        return choices.get(random.nextInt(choices.size()));
    }

    private interface Act {
        void run(String serial, Message message) throws Exception;
    }

    private void note(String way, String topic, double delayS, String orderingKey, Act act) {
        String serial = serial();
        String tag = random.nextDouble() < RARE && orderingKey.isEmpty() ? "rare" : "common";
        journal.write("begin", serial, way, List.of(List.of(topic, tag, orderingKey, delayS)));
        MessageBuilder builder = Told.PROVIDER.newMessageBuilder().setTopic(topic).setKeys(serial).setTag(tag)
            .setBody((serial + "/0").getBytes(StandardCharsets.UTF_8));
        if (!orderingKey.isEmpty()) {
            builder.setMessageGroup(orderingKey);
        }
        if (delayS > 0) { // from now: the journal has it that the sending began before
            builder.setDeliveryTimestamp((long) Math.ceil(System.currentTimeMillis() + delayS * 1000));
        }
        try {
            act.run(serial, builder.build());
            journal.write("returned", serial);
        } catch (Exception failure) { // of gRPC's, too
            journal.write("failed", serial, failure.getClass().getSimpleName());
        }
    }

    private void send(String serial, Message message) throws ClientException {
        producer.send(message);
        journal.write("stored", serial);
    }

    /** Send half message, local transaction, outcome; sometimes none, or one that must be refused or repeated. */
    private void play(String serial, Message message) throws Exception {
        business.begin(serial);
        Transaction transaction = producer.beginTransaction();
        String id = producer.send(message, transaction).getMessageId().toString();
        journal.write("half", serial, transactionId(id));
        String state = random.nextDouble() < 0.2 ? ROLLBACK : COMMIT;
        try {
            if (!business.finish(serial, state.equals(COMMIT))) {
                state = ROLLBACK;
            }
        } catch (SQLException away) {
            return;
        }
        if (random.nextDouble() < 0.3) {
            return; // the check finds out
        }
        if (tell(serial, state, transaction) && random.nextDouble() < 0.2) {
            tell(serial, oneOf(List.of(COMMIT, ROLLBACK)), transaction);
        }
    }

    /** Return txmsg's transaction id: 16 bytes of the message id. */
    private static String transactionId(String messageId) {
        String hex = messageId.substring("01".length());
        return new UUID(Long.parseUnsignedLong(hex.substring(0, 16), 16), Long.parseUnsignedLong(hex.substring(16), 16))
            .toString();
    }

    /** Return true if the call was answered OK. */
    private boolean tell(String serial, String state, Transaction transaction) {
        journal.write("tell", serial, state);
        String reply = "ok";
        try {
            if (state.equals(COMMIT)) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
        } catch (Exception failure) { // of gRPC's, too
            reply = failure.getClass().getSimpleName();
        }
        journal.write("told", serial, state, reply);
        return reply.equals("ok");
    }
}
