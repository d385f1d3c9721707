import apache.rocketmq.v2.Message;
import apache.rocketmq.v2.ReceiveMessageResponse;
import java.util.List;
import org.apache.rocketmq.shaded.io.grpc.CallOptions;
import org.apache.rocketmq.shaded.io.grpc.Channel;
import org.apache.rocketmq.shaded.io.grpc.ClientCall;
import org.apache.rocketmq.shaded.io.grpc.ClientInterceptor;
import org.apache.rocketmq.shaded.io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import org.apache.rocketmq.shaded.io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import org.apache.rocketmq.shaded.io.grpc.InternalGlobalInterceptors;
import org.apache.rocketmq.shaded.io.grpc.Metadata;
import org.apache.rocketmq.shaded.io.grpc.MethodDescriptor;

/** Adds the queue of each received message as a property: it is on the wire, but not in the client. */
final class Places implements ClientInterceptor {
    static final String QUEUE = "queue";

    /** Must be called before the first client is created. */
    static void install() {
        InternalGlobalInterceptors.setInterceptorsTracers(List.of(new Places()), List.of(), List.of());
    }

    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
        return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
            @Override
            public void start(Listener<R> listener, Metadata headers) {
                super.start(new SimpleForwardingClientCallListener<>(listener) {
                    @Override
                    public void onMessage(R reply) {
                        super.onMessage(placed(reply));
                    }
                }, headers);
            }
        };
    }

    @SuppressWarnings("unchecked") // it is of the same class
    private static <R> R placed(R reply) {
        if (!(reply instanceof ReceiveMessageResponse) || !((ReceiveMessageResponse) reply).hasMessage()) {
            return reply;
        }
        Message message = ((ReceiveMessageResponse) reply).getMessage();
        String queue = Integer.toString(message.getSystemProperties().getQueueId());
        return (R) ((ReceiveMessageResponse) reply).toBuilder()
            .setMessage(message.toBuilder().putUserProperties(QUEUE, queue)).build();
    }
}
