import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.concurrent.CountDownLatch;
import java.util.Map;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * As guest_producer.py: java GuestProducer TOLD. Notes each step. Its local transactions are attempts of the business
 * database, by which its checker answers, whichever process began them.
 */
public class GuestProducer {
    private static final int CALLERS = 4;
    private static final Map<String, TransactionResolution> RESOLUTIONS = Map.of("commit",
        TransactionResolution.COMMIT, "rollback", TransactionResolution.ROLLBACK, "unknown",
        TransactionResolution.UNKNOWN);

    private final Journal journal;
    private final Business business;

    GuestProducer(Told told) throws Exception {
        journal = new Journal(told.journal);
        business = new Business(told.businessUrl, told.giveUpS);
    }

    public static void main(String[] words) throws Exception {
        Told told = Told.of(words);
        new GuestProducer(told).run(told);
    }

    private void run(Told told) throws Exception {
        Producer producer = Told.started(() -> Told.PROVIDER.newProducerBuilder()
            .setClientConfiguration(told.configuration()).setTopics(told.topics.toArray(String[]::new))
            .setTransactionChecker(this::check).build());
        for (Thread thread : Told.inThreads(CALLERS, number ->
                 new Caller(told, journal, business, producer, number).run(told.ratePerS / CALLERS))) {
            thread.join();
        }
        journal.write("quiet");
        new CountDownLatch(1).await(); // it can be asked, until it is killed
    }

    /** Answers check-backs from the business database. */
    private TransactionResolution check(MessageView message) {
        String serial = StandardCharsets.UTF_8.decode(message.getBody()).toString().split("/")[0];
        String state = "unknown";
        try {
            state = business.check(serial);
        } catch (SQLException away) {
            // It is asked again.
        }
        journal.write("checked", serial, state);
        return RESOLUTIONS.get(state);
    }
}
