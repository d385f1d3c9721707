import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashSet;
import java.util.Set;
import java.util.UUID;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Places orders with transactional messages: java Orders.java HOST:PORT TOPIC LEDGER COUNT.
 *
 * <p>The local transaction is a line in a file, the ledger. When it has COUNT lines, no more orders are placed. If the
 * program is killed, the next one says of each order that it left whether the ledger has it.
 */
public class Orders {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private final Path ledger;
    private volatile String underWay = "";

    Orders(Path ledger) {
        this.ledger = ledger;
    }

    public static void main(String[] words) throws Exception {
        Path ledger = Path.of(words[2]);
        if (Files.notExists(ledger)) {
            Files.createFile(ledger);
        }
        var where = ClientConfiguration.newBuilder().setEndpoints(words[0]).enableSsl(false).build();
        var orders = new Orders(ledger);
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(where).setTopics(words[1])
                 .setTransactionChecker(orders::check).build()) {
            System.out.println("started");
            for (int placed = orders.ids().size(); placed < Integer.parseInt(words[3]);) {
                placed += orders.place(producer, words[1], 100 + placed % 900) ? 1 : 0;
                Thread.sleep(100); // until the next customer comes
            }
            System.in.read(); // answers checks until whoever started it has gone
        }
    }

    /** Return true if the order was placed: some are refused after their half message was sent. */
    boolean place(Producer producer, String topic, int cents) throws Exception {
        String id = UUID.randomUUID().toString();
        String body = String.format("{\"order_id\": \"%s\", \"cents\": %d}", id, cents);
        Message half = PROVIDER.newMessageBuilder().setTopic(topic).setKeys(id)
            .setBody(body.getBytes(StandardCharsets.UTF_8)).build();
        underWay = id;
        Transaction transaction = producer.beginTransaction();
        try {
            producer.send(half, transaction);
        } catch (ClientException | RuntimeException away) {
            return false;
        }
        boolean isRefused = cents % 7 == 0 && id.charAt(0) < '8';
        if (!isRefused) { // the local transaction: on disk when this returns
            Files.writeString(ledger, id + " " + cents + "\n", StandardOpenOption.APPEND, StandardOpenOption.SYNC);
        }
        underWay = "";
        try {
            if (isRefused) {
                transaction.rollback();
            } else {
                transaction.commit();
            }
        } catch (ClientException | RuntimeException unknown) {
            // a check-back says what the ledger says
        }
        return !isRefused;
    }

    TransactionResolution check(MessageView half) {
        String id = half.getKeys().iterator().next();
        if (id.equals(underWay)) {
            return TransactionResolution.UNKNOWN;
        }
        try {
            return ids().contains(id) ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        } catch (IOException unreadable) {
            return TransactionResolution.UNKNOWN;
        }
    }

    private Set<String> ids() throws IOException {
        var ids = new HashSet<String>();
        for (String line : Files.readAllLines(ledger)) {
            ids.add(line.split(" ")[0]);
        }
        return ids;
    }
}
