import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.helix.HelixManager;
import org.apache.helix.HelixManagerFactory;
import org.apache.helix.InstanceType;
import org.apache.helix.controller.pipeline.Pipeline;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TopicDescription;

/**
 * A Helix controller of one or several groups, each of which it leads or stands by for, with what Helix lacks: it asks
 * Kafka for the topics that the groups read. Its event file, which stays empty, appears when it is ready.
 */
public final class HelixController {
    private static final String DEFAULT_REFRESH_MS = "300000"; // as Kafka's clients look for topics

    private HelixController() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, List<String>> options = Members.options(arguments);
        Map<String, String> settings = Members.settings(options);
        HelixCluster.setProperties(settings);
        String zookeeper = options.get("zookeeper").get(0);
        List<String> groups = options.get("group");
        String process = options.get("process").get(0);
        HelixWarmUp.run(zookeeper, settings);
        Admin kafka = Admin.create(Map.of("bootstrap.servers", options.get("bootstrap").get(0)));
        Pattern topics = Pattern.compile(pattern(options));
        Map<String, List<Integer>> weights = weights(options);
        Map<HelixManager, HelixCluster> clusters = new HashMap<>();
        for (String group : groups) {
            HelixCluster cluster = new HelixCluster(zookeeper, group, settings, weights);
            cluster.setUp();
            refresh(kafka, topics, cluster);
            HelixManager manager =
                    HelixManagerFactory.getZKHelixManager(group, process, InstanceType.CONTROLLER, zookeeper);
            if (Boolean.parseBoolean(settings.get("task.pipeline.disabled"))) {
                manager.setEnabledControlPipelineTypes(Set.of(Pipeline.Type.DEFAULT));
            }
            manager.connect();
            clusters.put(manager, cluster);
        }
        new EventLog(Path.of(options.get("events").get(0)), process, groups.get(0));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            clusters.keySet().forEach(HelixManager::disconnect);
            Runtime.getRuntime().halt(0); // the code that a signal is answered with
        }));
        long refreshMs = Long.parseLong(settings.getOrDefault("metadata.max.age.ms", DEFAULT_REFRESH_MS));
        while (true) {
            TimeUnit.MILLISECONDS.sleep(refreshMs);
            for (Map.Entry<HelixManager, HelixCluster> entry : clusters.entrySet()) {
                if (entry.getKey().isLeader()) {
                    refresh(kafka, topics, entry.getValue());
                }
            }
        }
    }

    private static String pattern(Map<String, List<String>> options) {
        if (options.containsKey("pattern")) {
            return options.get("pattern").get(0);
        }
        return String.join("|", options.get("topic").stream().map(Pattern::quote).toList());
    }

    /** Return topic to the weights of its partitions, in order: {@code --weights orders:400,100}. */
    private static Map<String, List<Integer>> weights(Map<String, List<String>> options) {
        Map<String, List<Integer>> weights = new HashMap<>();
        for (String given : options.getOrDefault("weights", List.of())) {
            String[] parts = given.split(":");
            weights.put(parts[0], Stream.of(parts[1].split(",")).map(Integer::valueOf).toList());
        }
        return weights;
    }

    /** Make each topic that the group reads a resource of its cluster. */
    private static void refresh(Admin kafka, Pattern topics, HelixCluster cluster) throws InterruptedException {
        try {
            List<String> names = kafka.listTopics().names().get().stream()
                    .filter(name -> topics.matcher(name).matches())
                    .toList();
            Map<String, TopicDescription> found = new HashMap<>(kafka.describeTopics(names).allTopicNames().get());
            found.forEach((topic, about) -> cluster.setTopic(topic, about.partitions().size()));
        } catch (ExecutionException error) { // a broker is away: the next time will do
            System.err.println("topics cannot be read: " + error.getCause());
        }
    }
}
