import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A process with participants of a Helix cluster, each of which reads its partitions with Kafka's Java client. */
public final class HelixConsumer {
    private HelixConsumer() {}

    public static void main(String[] arguments) throws IOException {
        Map<String, List<String>> options = Members.options(arguments);
        Map<String, String> settings = Members.settings(options);
        HelixCluster.setProperties(settings);
        HelixWarmUp.run(options.get("zookeeper").get(0), Map.of());
        warmUpClient(options.get("bootstrap").get(0), settings);
        Members.run(options, HelixConsumer::create);
    }

    /** Load the classes of a consumer. */
    private static void warmUpClient(String bootstrap, Map<String, String> settings) {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                ofClient(settings, bootstrap, "warm-up"), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.listTopics();
        }
    }

    private static Map<String, Object> ofClient(Map<String, String> settings, String bootstrap, String group) {
        Map<String, Object> own = new HashMap<>(settings);
        own.keySet().removeIf(HelixCluster::isProperty);
        own.put("bootstrap.servers", bootstrap);
        own.put("group.id", group); // for its offsets only: it never subscribes
        return own;
    }

    private static Member create(String name, String instance, Members process) {
        String cluster = EventLog.groupOf(name, process.option("group"));
        Map<String, Object> settings = ofClient(process.settings(), process.option("bootstrap"), cluster);
        settings.put("client.id", name);
        settings.put("max.poll.records", process.maxPollRecords());
        return new HelixMember(
                name, cluster, process.option("zookeeper"), settings, process.recordWorkUs, process.log);
    }
}
