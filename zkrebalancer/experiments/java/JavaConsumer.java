import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A process with consumers of Kafka's own Java client. */
public final class JavaConsumer {
    private static final long WARM_UP_LIMIT_NANOS = TimeUnit.SECONDS.toNanos(10);

    private JavaConsumer() {}

    public static void main(String[] arguments) throws IOException {
        Map<String, List<String>> options = Members.options(arguments);
        warmUp(options);
        Members.run(options, JavaConsumer::create);
    }

    /** Load the classes of a rebalance, so that the first join does not wait for the disk: a group of its own joins. */
    private static void warmUp(Map<String, List<String>> options) {
        Map<String, Object> settings = new HashMap<>(Members.settings(options));
        settings.put("bootstrap.servers", options.get("bootstrap").get(0));
        settings.put("group.id", "warm-up-" + ProcessHandle.current().pid());
        settings.put("allow.auto.create.topics", false);
        boolean[] isAssigned = {false};
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of("warm-up"), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    isAssigned[0] = true;
                }
            });
            long giveUpAt = System.nanoTime() + WARM_UP_LIMIT_NANOS;
            while (!isAssigned[0] && System.nanoTime() - giveUpAt < 0) {
                consumer.poll(Duration.ofMillis(100));
            }
        }
    }

    private static Member create(String name, String instance, Members process) {
        Map<String, Object> settings = new HashMap<>(process.settings());
        settings.put("bootstrap.servers", process.option("bootstrap"));
        settings.put("group.id", EventLog.groupOf(name, process.option("group")));
        settings.put("client.id", name);
        if (instance != null) {
            settings.put("group.instance.id", instance);
        }
        settings.put("max.poll.records", process.maxPollRecords());
        return new JavaMember(name, settings, process.topics(), process.pattern(), process.recordWorkUs, process.log);
    }
}
