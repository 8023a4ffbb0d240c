import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.consumer.ConsumerConfig;
import kafka.javaapi.consumer.ZookeeperConsumerConnector;

/** A process with Kafka's old high-level consumers, which assign partitions themselves through ZooKeeper. */
public final class OldConsumer {
    private OldConsumer() {}

    public static void main(String[] arguments) throws IOException {
        Map<String, List<String>> options = Members.options(arguments);
        warmUp(options.get("zookeeper").get(0));
        Members.run(options, OldConsumer::create);
    }

    /** Load every class that a rebalance needs, so that the first join does not wait for the disk. */
    private static void warmUp(String zookeeper) {
        Properties settings = new Properties();
        settings.setProperty("zookeeper.connect", zookeeper);
        settings.setProperty("group.id", "warm-up-" + ProcessHandle.current().pid());
        ZookeeperConsumerConnector connector = new ZookeeperConsumerConnector(new ConsumerConfig(settings));
        connector.createMessageStreams(Map.of("warm-up", 1));
        connector.shutdown();
    }

    private static Member create(String name, String instance, Members process) {
        Properties settings = new Properties();
        settings.setProperty("zookeeper.connect", process.option("zookeeper"));
        settings.setProperty("group.id", EventLog.groupOf(name, process.option("group")));
        settings.setProperty("client.id", name);
        // Ranges are assigned in the order of these names, which by default begin with the host's name. With the member's
        // name first, a returning member gets its old place; the suffix avoids the node of its killed predecessor.
        settings.setProperty("consumer.id", name + "-" + Long.toHexString(System.nanoTime()));
        settings.putAll(process.settings());
        Map<String, Integer> topics = new HashMap<>();
        process.topics().forEach(topic -> topics.put(topic, 1));
        return new OldMember(name, settings, topics, process.pattern(), process.recordWorkUs, process.log);
    }
}
