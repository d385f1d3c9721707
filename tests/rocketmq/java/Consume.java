import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageView;

/** As the scenario `consume` of client.py: java Consume.java HOST:PORT TOPIC GROUP. */
public class Consume {
    public static void main(String[] words) throws Exception {
        var where = ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        var provider = ClientServiceProvider.loadService();
        try (var consumer = provider.newPushConsumerBuilder().setClientConfiguration(where).setConsumerGroup(words[2])
                 .setSubscriptionExpressions(Map.of(words[1], new FilterExpression("*")))
                 .setMessageListener(Consume::handle).build()) {
            new CountDownLatch(1).await();
        }
    }

    private static ConsumeResult handle(MessageView message) {
        String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
        System.out.println(String.format("{\"body\": \"%s\", \"attempt\": %d}", body, message.getDeliveryAttempt()));
        System.out.flush();
        return ConsumeResult.SUCCESS;
    }
}
