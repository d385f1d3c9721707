import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Scanner;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** As the scenario `hold` of client.py: java Hold.java HOST:PORT TOPIC. */
public class Hold {
    private static volatile boolean knows;

    public static void main(String[] words) throws Exception {
        var where = ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        var provider = ClientServiceProvider.loadService();
        try (var producer = provider.newProducerBuilder().setClientConfiguration(where).setTopics(words[1])
                 .setTransactionChecker(Hold::check).build()) {
            Message message = provider.newMessageBuilder().setTopic(words[1])
                .setBody("in doubt".getBytes(StandardCharsets.UTF_8)).build();
            System.out.println("{\"id\": \"" + send(producer, message) + "\"}");
            System.out.flush();
            for (var lines = new Scanner(System.in); lines.hasNextLine(); lines.nextLine()) {
                knows = true;
            }
        }
    }

    private static String send(Producer producer, Message message) throws Exception {
        while (true) {
            try {
                return producer.send(message, producer.beginTransaction()).getMessageId().toString();
            } catch (ClientException | RuntimeException away) {
                Thread.sleep(100);
            }
        }
    }

    private static TransactionResolution check(MessageView message) {
        return knows ? TransactionResolution.COMMIT : TransactionResolution.UNKNOWN;
    }
}
