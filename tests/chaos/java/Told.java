import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.shaded.com.google.gson.FieldNamingPolicy;
import org.apache.rocketmq.shaded.com.google.gson.GsonBuilder;

/** The only argument of a program: the fields of client.py's Orders that it needs, and those of guest_java.py. */
final class Told {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration TIMEOUT = Duration.ofSeconds(3);
    private static final long RESTART_MS = 500;

    String name;
    String businessUrl;
    String journal;
    String gateway;
    long seed;
    double ratePerS;
    List<String> topics;
    List<String> halfTopics;
    String storyTopic;
    String pushed;
    String pulled;
    List<String> pulledTopics;
    double heldS;
    double giveUpS;

    /** End with the parent. The latch is counted down when the parent asks to start nothing new. */
    final transient CountDownLatch quiet = new CountDownLatch(1);

    static Told of(String[] words) {
        Told told = new GsonBuilder().setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES).create()
            .fromJson(words[0], Told.class);
        Thread parent = new Thread(told::obeyParent, "parent");
        parent.setDaemon(true);
        parent.start();
        System.out.println("ready");
        return told;
    }

    private void obeyParent() {
        for (Scanner lines = new Scanner(System.in); lines.hasNextLine();) {
            if (lines.nextLine().strip().equals("quiet")) {
                quiet.countDown();
            }
        }
        Runtime.getRuntime().halt(3);
    }

    /** Return the configuration of a client of the gateway. */
    ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(gateway).enableSsl(false).setRequestTimeout(TIMEOUT).build();
    }

    static Map<String, FilterExpression> allOf(List<String> topics) {
        return topics.stream().collect(Collectors.toMap(topic -> topic, topic -> new FilterExpression()));
    }

    /** Start a client. Retries, as a supervisor does: its gateway may be down. */
    static <T> T started(Callable<T> make) throws Exception {
        while (true) {
            try {
                return make.call();
            } catch (ClientException | RuntimeException away) {
                Thread.sleep(RESTART_MS);
            }
        }
    }

    /** Work for a thread. */
    interface Act {
        void run(int number) throws Exception;
    }

    /** Run work in so many threads, with the number of each. An error ends the process: its parent notices. */
    static List<Thread> inThreads(int count, Act act) {
        List<Thread> threads = new ArrayList<>();
        for (int each = 0; each < count; each++) {
            int number = each;
            threads.add(new Thread(() -> {
                try {
                    act.run(number);
                } catch (Throwable failure) {
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            }));
        }
        threads.forEach(Thread::start);
        return threads;
    }
}
