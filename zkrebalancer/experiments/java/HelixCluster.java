import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.helix.ConfigAccessor;
import org.apache.helix.manager.zk.ZKHelixAdmin;
import org.apache.helix.model.ClusterConfig;
import org.apache.helix.model.IdealState;
import org.apache.helix.model.ResourceConfig;
import org.apache.helix.model.StateModelDefinition;
import org.apache.helix.model.builder.FullAutoModeISBuilder;

/** A Helix cluster in ZooKeeper: each group is one, each of its topics a resource with one replica of each partition. */
final class HelixCluster implements AutoCloseable {
    /**
     * Helix's OnlineOffline with at most one ONLINE replica. The built-in one bounds them by the number of replicas,
     * which the controller does not check: a new owner would begin before the old one has ended.
     */
    static final String MODEL = "OnlineOfflineOnce";

    private static final String DEFAULT_CAPACITY_KEY = "partitions"; // which the rebalancer WAGED balances
    // Of each member: more than all partitions weigh, as one may own them all. The sum of all members is an int too.
    private static final int CAPACITY = 2_000_000;

    private final ZKHelixAdmin admin;
    private final String zookeeper;
    private final String name;
    private final Map<String, String> settings;
    private final Map<String, List<Integer>> weights;
    private final String capacityKey;

    /** {@code weights}: topic to those of its partitions, for WAGED; the partitions of other topics weigh 1. */
    HelixCluster(
            String zookeeper, String name, Map<String, String> settings, Map<String, List<Integer>> weights) {
        this.admin = new ZKHelixAdmin(zookeeper);
        this.zookeeper = zookeeper;
        this.name = name;
        this.settings = settings;
        this.weights = weights;
        this.capacityKey = settings.getOrDefault("instance.capacity.key", DEFAULT_CAPACITY_KEY);
    }

    /** Apply the settings that Helix reads as system properties; call it before anything else of Helix. */
    static void setProperties(Map<String, String> settings) {
        settings.forEach((key, value) -> {
            if (isProperty(key)) {
                System.setProperty(key, value);
            }
        });
    }

    static boolean isProperty(String key) {
        return key.startsWith("zk.") || key.startsWith("zookeeper.") || key.startsWith("helix");
    }

    /** Create the cluster unless it exists. */
    void setUp() {
        if (admin.getClusters().contains(name)) {
            return;
        }
        admin.addCluster(name, false);
        admin.addStateModelDef(name, MODEL, model());
        configure(accessor -> {
            ClusterConfig config = accessor.getClusterConfig(name);
            config.getRecord().setBooleanField("allowParticipantAutoJoin", true);
            config.enableP2PMessage(isSet("p2p.messages"));
            if (settings.getOrDefault("rebalancer", "").endsWith("WagedRebalancer")) {
                config.setInstanceCapacityKeys(List.of(capacityKey));
                config.setDefaultInstanceCapacityMap(Map.of(capacityKey, CAPACITY));
                config.setDefaultPartitionWeightMap(Map.of(capacityKey, 1));
            }
            accessor.setClusterConfig(name, config);
        });
    }

    private void configure(Consumer<ConfigAccessor> change) {
        ConfigAccessor accessor = new ConfigAccessor(zookeeper);
        try {
            change.accept(accessor);
        } finally {
            accessor.close();
        }
    }

    private static StateModelDefinition model() {
        return new StateModelDefinition.Builder(MODEL)
                .initialState("OFFLINE")
                .addState("ONLINE", 0)
                .addState("OFFLINE", 1)
                .addState("DROPPED")
                .addState("ERROR")
                .addTransition("ONLINE", "OFFLINE", 0)
                .addTransition("OFFLINE", "ONLINE", 1)
                .addTransition("OFFLINE", "DROPPED")
                .upperBound("ONLINE", 1)
                .build();
    }

    private boolean isSet(String setting) {
        return Boolean.parseBoolean(settings.get(setting));
    }

    /** Let the members read a topic, or the partitions that it has grown by. */
    void setTopic(String topic, int partitions) {
        IdealState known = admin.getResourceIdealState(name, topic);
        if (known == null) {
            if (weights.containsKey(topic)) {
                setWeights(topic, weights.get(topic)); // before the topic can be assigned
            }
            admin.addResource(name, topic, idealState(topic, partitions));
        } else if (known.getNumPartitions() < partitions) {
            admin.setResourceIdealState(name, topic, idealState(topic, partitions));
        }
    }

    private void setWeights(String topic, List<Integer> ofPartitions) {
        Map<String, Map<String, Integer>> weighed = new HashMap<>();
        weighed.put(ResourceConfig.DEFAULT_PARTITION_KEY, Map.of(capacityKey, 1)); // Helix requires one
        for (int partition = 0; partition < ofPartitions.size(); partition++) {
            weighed.put(HelixPartition.name(topic, partition), Map.of(capacityKey, ofPartitions.get(partition)));
        }
        ResourceConfig config = new ResourceConfig(topic);
        try {
            config.setPartitionCapacityMap(weighed);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        configure(accessor -> accessor.setResourceConfig(name, topic, config));
    }

    private IdealState idealState(String topic, int partitions) {
        FullAutoModeISBuilder builder = new FullAutoModeISBuilder(topic);
        builder.setStateModel(MODEL).setNumReplica(1).setNumPartitions(partitions);
        for (int partition = 0; partition < partitions; partition++) {
            builder.add(HelixPartition.name(topic, partition));
        }
        if (settings.containsKey("rebalancer")) {
            builder.setRebalancerClass(settings.get("rebalancer"));
        }
        if (settings.containsKey("rebalance.strategy")) {
            builder.setRebalanceStrategy(settings.get("rebalance.strategy"));
        }
        if (settings.containsKey("rebalance.delay.ms")) {
            builder.setMinActiveReplica(0).setRebalanceDelay(Integer.parseInt(settings.get("rebalance.delay.ms")));
            builder.enableDelayRebalance();
        }
        IdealState state = builder.build();
        state.setBatchMessageMode(isSet("batch.messages"));
        state.setDisableExternalView(isSet("external.view.disabled"));
        return state;
    }

    void drop() {
        admin.dropCluster(name);
    }

    @Override
    public void close() {
        admin.close();
    }
}
