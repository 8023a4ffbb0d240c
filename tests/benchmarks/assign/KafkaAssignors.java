import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.log4j.Level;
import org.apache.log4j.LogManager;

/**
 * Runs Kafka's own assignors: one request per line on standard input, one reply per line on standard output, as JSON.
 *
 * <p>Request: {"assignor", "topics": {name: partitions}, "subscriptions": [[topic]], "members": {name:
 * {"subscription": index, "owned": {topic: [partition]}, "generation", "instance_id"}}, "joining": a member's name or
 * null, "warm_up_ms", "repetitions", "budget_ms"}. With "joining", the assignor first decides without that member, the
 * others then own the result, and the timed decision adds the member. Reply: {"assignment": {member: {topic:
 * [partition]}}} if "repetitions" is 0, else {"times_ms": [], "processor_ms": [] (CPU time of the deciding thread),
 * "squares": sum of squared sizes, "kept": partitions that stay with their owner}.
 */
public final class KafkaAssignors {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private record Member(List<String> topics, Map<String, List<Integer>> owned, int generation, Optional<String> instanceId) {}

    /** One assignor: its input, prepared beforehand, and its decision. */
    private interface Assignor {
        Supplier<Object> prepare(Map<String, Integer> topics, Map<String, Member> members);

        Map<String, Map<String, List<Integer>>> read(Object decision);
    }

    public static void main(String[] arguments) throws IOException {
        LogManager.getRootLogger().setLevel(Level.OFF); // keep logs out of the replies and the times
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static ObjectNode answer(JsonNode request) {
        Assignor assignor = assignor(request.get("assignor").asText());
        Map<String, Integer> topics = new HashMap<>();
        request.get("topics").fields().forEachRemaining(entry -> topics.put(entry.getKey(), entry.getValue().asInt()));
        Map<String, Member> members = readMembers(request);
        if (request.hasNonNull("joining")) {
            Member joining = members.remove(request.get("joining").asText());
            members = settled(members, assignor.read(assignor.prepare(topics, members).get()));
            members.put(request.get("joining").asText(), joining);
        }
        Supplier<Object> decide = assignor.prepare(topics, members);
        ObjectNode reply = JSON.createObjectNode();
        int repetitions = request.get("repetitions").asInt();
        if (repetitions == 0) {
            reply.set("assignment", JSON.valueToTree(assignor.read(decide.get())));
        } else {
            measure(decide, request, repetitions, reply);
            judge(members, assignor.read(decide.get()), reply);
        }
        return reply;
    }

    /** Time at least one decision, and no further ones after the budget is spent. */
    private static void measure(Supplier<Object> decide, JsonNode request, int repetitions, ObjectNode reply) {
        ArrayNode timesMs = reply.putArray("times_ms");
        ArrayNode processorMs = reply.putArray("processor_ms");
        long warmUntil = System.nanoTime() + request.get("warm_up_ms").asLong() * 1_000_000;
        do {
            decide.get();
        } while (System.nanoTime() < warmUntil);
        long end = System.nanoTime() + request.get("budget_ms").asLong() * 1_000_000;
        do {
            System.gc(); // or a decision would pay for the garbage of the one before
            long processorStarted = THREADS.getCurrentThreadCpuTime();
            long started = System.nanoTime();
            decide.get();
            timesMs.add((System.nanoTime() - started) / 1e6);
            processorMs.add((THREADS.getCurrentThreadCpuTime() - processorStarted) / 1e6);
        } while (timesMs.size() < repetitions && System.nanoTime() < end);
    }

    private static void judge(Map<String, Member> members, Map<String, Map<String, List<Integer>>> decision, ObjectNode reply) {
        long squares = 0;
        long kept = 0;
        for (Map.Entry<String, Map<String, List<Integer>>> entry : decision.entrySet()) {
            long size = 0;
            Map<String, List<Integer>> owned = members.get(entry.getKey()).owned();
            for (Map.Entry<String, List<Integer>> share : entry.getValue().entrySet()) {
                size += share.getValue().size();
                Set<Integer> before = new HashSet<>(owned.getOrDefault(share.getKey(), List.of()));
                kept += share.getValue().stream().filter(before::contains).count();
            }
            squares += size * size;
        }
        reply.put("squares", squares).put("kept", kept);
    }

    private static Map<String, Member> readMembers(JsonNode request) {
        List<List<String>> subscriptions = new ArrayList<>();
        request.get("subscriptions").forEach(topics -> {
            List<String> names = new ArrayList<>();
            topics.forEach(topic -> names.add(topic.asText()));
            subscriptions.add(names);
        });
        Map<String, Member> members = new HashMap<>();
        request.get("members").fields().forEachRemaining(entry -> {
            JsonNode member = entry.getValue();
            Map<String, List<Integer>> owned = new HashMap<>();
            member.path("owned").fields().forEachRemaining(topic -> {
                List<Integer> partitions = owned.computeIfAbsent(topic.getKey(), name -> new ArrayList<>());
                topic.getValue().forEach(partition -> partitions.add(partition.asInt()));
            });
            Optional<String> instanceId = Optional.ofNullable(member.path("instance_id").asText(null));
            int generation = member.path("generation").asInt(0);
            members.put(entry.getKey(), new Member(subscriptions.get(member.get("subscription").asInt()), owned, generation, instanceId));
        });
        return members;
    }

    private static Map<String, Member> settled(Map<String, Member> members, Map<String, Map<String, List<Integer>>> decision) {
        Map<String, Member> result = new HashMap<>();
        members.forEach((name, member) -> result.put(name,
            new Member(member.topics(), decision.getOrDefault(name, Map.of()), 1, member.instanceId())));
        return result;
    }

    private static Assignor assignor(String name) {
        return switch (name) {
            case "uniform" -> new ServerSide(new UniformAssignor());
            case "server range" -> new ServerSide(new org.apache.kafka.coordinator.group.assignor.RangeAssignor());
            case "client cooperative-sticky" -> new ClientSide(new CooperativeStickyAssignor());
            case "client range" -> new ClientSide(new org.apache.kafka.clients.consumer.RangeAssignor());
            case "client round-robin" -> new ClientSide(new RoundRobinAssignor());
            default -> throw new IllegalArgumentException(name);
        };
    }

    private record ClientSide(AbstractPartitionAssignor assignor) implements Assignor {
        @Override
        public Supplier<Object> prepare(Map<String, Integer> topics, Map<String, Member> members) {
            Map<String, Subscription> subscriptions = new HashMap<>();
            members.forEach((name, member) -> {
                List<TopicPartition> owned = new ArrayList<>();
                member.owned().forEach((topic, partitions) -> partitions.forEach(p -> owned.add(new TopicPartition(topic, p))));
                Subscription subscription = new Subscription(member.topics(), null, owned, member.generation(), Optional.empty());
                subscription.setGroupInstanceId(member.instanceId());
                subscriptions.put(name, subscription);
            });
            return () -> assignor.assign(topics, subscriptions);
        }

        @Override
        @SuppressWarnings("unchecked")
        public Map<String, Map<String, List<Integer>>> read(Object decision) {
            Map<String, Map<String, List<Integer>>> result = new TreeMap<>();
            ((Map<String, List<TopicPartition>>) decision).forEach((name, partitions) -> {
                Map<String, List<Integer>> byTopic = result.computeIfAbsent(name, key -> new TreeMap<>());
                partitions.forEach(p -> byTopic.computeIfAbsent(p.topic(), key -> new ArrayList<>()).add(p.partition()));
            });
            return result;
        }
    }

    private static final class ServerSide implements Assignor {
        private final ConsumerGroupPartitionAssignor assignor;
        private final Map<String, Uuid> idOf = new HashMap<>();
        private final Map<Uuid, String> nameOf = new HashMap<>();

        ServerSide(ConsumerGroupPartitionAssignor assignor) {
            this.assignor = assignor;
        }

        @Override
        public Supplier<Object> prepare(Map<String, Integer> topics, Map<String, Member> members) {
            Map<Uuid, Integer> counts = new HashMap<>();
            new TreeMap<>(topics).forEach((name, count) -> {
                Uuid id = idOf.computeIfAbsent(name, key -> new Uuid(1, idOf.size() + 1));
                nameOf.put(id, name);
                counts.put(id, count);
            });
            Map<List<String>, Set<Uuid>> subscribed = new HashMap<>();
            Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
            Map<String, MemberSubscriptionAndAssignmentImpl> specs = new HashMap<>();
            members.forEach((name, member) -> {
                Map<Uuid, Set<Integer>> owned = new HashMap<>();
                member.owned().forEach((topic, partitions) -> {
                    owned.put(idOf.get(topic), new HashSet<>(partitions));
                    partitions.forEach(p -> owners.computeIfAbsent(idOf.get(topic), key -> new HashMap<>()).put(p, name));
                });
                Set<Uuid> ids = subscribed.computeIfAbsent(member.topics(), this::ids);
                specs.put(name, new MemberSubscriptionAndAssignmentImpl(Optional.empty(), member.instanceId(), ids, new Assignment(owned)));
            });
            SubscriptionType type = new HashSet<>(subscribed.values()).size() > 1 ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS;
            GroupSpec spec = new GroupSpecImpl(specs, type, owners);
            SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
                @Override
                public int numPartitions(Uuid topic) {
                    return counts.getOrDefault(topic, -1);
                }

                @Override
                public Set<String> racksForPartition(Uuid topic, int partition) {
                    return Set.of();
                }
            };
            return () -> assignor.assign(spec, describer).members();
        }

        private Set<Uuid> ids(List<String> topics) {
            Set<Uuid> ids = new HashSet<>();
            topics.stream().filter(idOf::containsKey).forEach(topic -> ids.add(idOf.get(topic)));
            return ids;
        }

        @Override
        @SuppressWarnings("unchecked")
        public Map<String, Map<String, List<Integer>>> read(Object decision) {
            Map<String, Map<String, List<Integer>>> result = new TreeMap<>();
            ((Map<String, MemberAssignment>) decision).forEach((name, assignment) -> {
                Map<String, List<Integer>> byTopic = result.computeIfAbsent(name, key -> new TreeMap<>());
                assignment.partitions().forEach((id, partitions) -> byTopic.put(nameOf.get(id), partitions.stream().sorted().toList()));
            });
            return result;
        }
    }
}
