import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** As the scenario `push` of client.py: java Push.java HOST:PORT TOPIC. */
public class Push {
    private static final Set<String> WANTED =
        Set.of("fails once", "1 of a", "2 of a", "3 of a", "delayed", "committed", "checked");

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Set<String> handled = ConcurrentHashMap.newKeySet();
    private final CountDownLatch hasAll = new CountDownLatch(1);
    private final String topic;

    Push(String topic) {
        this.topic = topic;
    }

    public static void main(String[] words) throws Exception {
        new Push(words[1]).play(words[0]);
    }

    /** Over TLS, and with an access key, if the environment says so. */
    static ClientConfiguration where(String endpoints) {
        var where = ClientConfiguration.newBuilder().setEndpoints(endpoints)
            .enableSsl(System.getenv("ROCKETMQ_TLS") != null).setRequestTimeout(Duration.ofSeconds(20));
        String key = System.getenv("ROCKETMQ_ACCESS_KEY");
        if (key != null) {
            where.setCredentialProvider(new StaticSessionCredentialsProvider(key, System.getenv("ROCKETMQ_SECRET")));
        }
        return where.build();
    }

    void play(String endpoints) throws Exception {
        ClientConfiguration where = where(endpoints);
        try (var consumer = provider.newPushConsumerBuilder().setClientConfiguration(where).setConsumerGroup("push")
                 .setSubscriptionExpressions(Map.of(topic, new FilterExpression("*")))
                 .setMessageListener(this::handle).build();
             var producer = provider.newProducerBuilder().setClientConfiguration(where).setTopics(topic)
                 .setTransactionChecker(this::check).build()) {
            producer.send(message("fails once").build());
            for (int number = 1; number <= 3; number++) {
                producer.send(message(number + " of a").setMessageGroup("a").build());
            }
            producer.send(message("delayed").setDeliveryTimestamp(System.currentTimeMillis() + 2000).build());
            transactions(producer);
            if (!hasAll.await(300, TimeUnit.SECONDS)) {
                throw new IllegalStateException("only " + handled + " came");
            }
        }
    }

    private void transactions(Producer producer) throws Exception {
        for (String body : List.of("committed", "rolled back", "checked")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message(body).build(), transaction);
            if (body.equals("committed")) {
                transaction.commit();
            } else if (body.equals("rolled back")) {
                transaction.rollback();
            }
        }
    }

    private MessageBuilder message(String body) {
        return provider.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private ConsumeResult handle(MessageView message) {
        String body = bodyOf(message);
        System.out.printf("{\"body\": \"%s\", \"attempt\": %d}%n", body, message.getDeliveryAttempt());
        if (body.equals("fails once") && message.getDeliveryAttempt() == 1) {
            return ConsumeResult.FAILURE;
        }
        handled.add(body);
        if (handled.containsAll(WANTED)) {
            hasAll.countDown();
        }
        return ConsumeResult.SUCCESS;
    }

    private TransactionResolution check(MessageView message) {
        System.out.printf("{\"checked\": \"%s\"}%n", bodyOf(message));
        return bodyOf(message).equals("checked") ? TransactionResolution.COMMIT : TransactionResolution.UNKNOWN;
    }

    private static String bodyOf(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }
}
