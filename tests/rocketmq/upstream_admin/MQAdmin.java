package org.apache.rocketmq.util;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** Creates topics and groups by `txmsg`. Its methods are those that the tests call. */
public class MQAdmin {
    public static final MQAdmin mqAdminExt = new MQAdmin();

    public static MQAdmin initMQAdminExtInstance(String nameServer) {
        return mqAdminExt;
    }

    public static boolean createTopic(String cluster, String topic, int queues, String type) {
        return txmsg("topic", "create", topic, "--type", type.toLowerCase(Locale.ROOT));
    }

    public static boolean createConsumerGroup(String cluster, String group, int withinS) {
        return txmsg("group", "create", group, "--orderly", "on");
    }

    public static Boolean resetOffsetByTimestamp(String group, String topic, long timestamp) {
        throw new UnsupportedOperationException("no test that runs asks for it");
    }

    public void shutdown() {
    }

    private static boolean txmsg(String... words) {
        List<String> command = new ArrayList<>(List.of(System.getenv("TXMSG")));
        command.addAll(List.of(words));
        try {
            return new ProcessBuilder(command).inheritIO().start().waitFor() == 0;
        } catch (java.io.IOException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
