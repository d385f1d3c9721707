import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;

/** As the scenario `orderly` of client.py: java Orderly.java HOST:PORT TOPIC GROUP FILTER. */
public class Orderly {
    public static void main(String[] words) throws Exception {
        var isDone = new CountDownLatch(1);
        var provider = ClientServiceProvider.loadService();
        var where = ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        var filter = new FilterExpression(words[3], FilterExpressionType.SQL92);
        try (var consumer = provider.newPushConsumerBuilder().setClientConfiguration(where).setConsumerGroup(words[2])
                 .setSubscriptionExpressions(Map.of(words[1], filter))
                 .setMessageListener(message -> {
                     String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                     System.out.println(String.format("{\"body\": \"%s\"}", body));
                     if (body.equals("last")) {
                         isDone.countDown();
                     }
                     return body.equals("bad") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                 }).build()) {
            if (!isDone.await(100, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the last message did not come");
            }
        }
    }
}
