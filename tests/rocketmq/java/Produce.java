import java.nio.charset.StandardCharsets;
import java.time.Duration;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * java Produce.java HOST:PORT TOPIC GROUPS: numbers 0, 1, 2, ... without end, in turn to each message group and as a
 * transaction that commits. What is not accepted is sent again, so that each number is accepted after the one before.
 */
public class Produce {
    public static void main(String[] words) throws Exception {
        int groups = Integer.parseInt(words[2]);
        var where = ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        var provider = ClientServiceProvider.loadService();
        try (var producer = provider.newProducerBuilder().setClientConfiguration(where).setTopics(words[1])
                 .setTransactionChecker(message -> TransactionResolution.COMMIT).build()) {
            for (int number = 0; true; number++) {
                for (int group = 0; group <= groups; group++) {
                    String body = group + ":" + number;
                    var builder = provider.newMessageBuilder().setTopic(words[1])
                        .setBody(body.getBytes(StandardCharsets.UTF_8));
                    boolean isTransaction = group == groups;
                    if (!isTransaction) {
                        builder.setMessageGroup("group-" + group);
                    }
                    int attempts = send(producer, builder.build(), isTransaction);
                    System.out.println(String.format("{\"sent\": \"%s\", \"attempts\": %d}", body, attempts));
                    System.out.flush();
                }
            }
        }
    }

    private static int send(Producer producer, Message message, boolean isTransaction) throws Exception {
        for (int attempt = 1; true; attempt++) {
            try {
                if (isTransaction) {
                    var transaction = producer.beginTransaction();
                    producer.send(message, transaction);
                    transaction.commit();
                } else {
                    producer.send(message);
                }
                return attempt;
            } catch (ClientException | RuntimeException away) {
                Thread.sleep(100);
            }
        }
    }
}
