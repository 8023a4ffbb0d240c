import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;

/** What one member owns, as its application sees it; writes starts, stops, records and commits as events. */
final class Ownership {
    private static final String OBSERVER = "zkrebalancer.observer"; // a setting that Kafka passes on to `Commits`
    private static final long UNKNOWN_POSITION = -1;

    private final String member;
    private final EventLog log;
    private final SortedMap<String, SortedMap<Integer, Long>> positions = new TreeMap<>(); // of owned partitions

    Ownership(String member, EventLog log) {
        this.member = member;
        this.log = log;
    }

    /** Let a consumer with these settings report its commits. */
    void observe(Map<String, Object> settings) {
        settings.put("interceptor.classes", List.of(Commits.class.getName()));
        settings.put(OBSERVER, this);
    }

    void started(Collection<TopicPartition> partitions) {
        long nowUs = EventLog.monoUs();
        SortedMap<String, SortedMap<Integer, Long>> started = new TreeMap<>();
        for (TopicPartition partition : partitions) {
            started.computeIfAbsent(partition.topic(), ignored -> new TreeMap<>())
                    .put(partition.partition(), UNKNOWN_POSITION);
        }
        started.forEach((topic, own) -> {
            positions.computeIfAbsent(topic, ignored -> new TreeMap<>()).putAll(own);
            log.write("fetcher_started", member, nowUs, EventLog.partitions(topic, own));
        });
    }

    /** Partitions that are not owned are left out. */
    void stopped(Collection<TopicPartition> partitions, String reason) {
        long nowUs = EventLog.monoUs();
        SortedMap<String, SortedMap<Integer, Long>> ended = new TreeMap<>();
        for (TopicPartition partition : partitions) {
            Long position = positions.getOrDefault(partition.topic(), new TreeMap<>()).remove(partition.partition());
            if (position != null) {
                ended.computeIfAbsent(partition.topic(), ignored -> new TreeMap<>())
                        .put(partition.partition(), position);
            }
        }
        ended.forEach((topic, own) ->
                log.write("fetcher_stopped", member, nowUs, EventLog.partitions(topic, own).put("reason", reason)));
    }

    List<TopicPartition> all() {
        return positions.entrySet().stream()
                .flatMap(topic -> topic.getValue().keySet().stream()
                        .map(partition -> new TopicPartition(topic.getKey(), partition)))
                .toList();
    }

    /** Return the next offsets of those partitions of which records were delivered. */
    Map<TopicPartition, OffsetAndMetadata> offsets(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition partition : partitions) {
            Long next = positions.getOrDefault(partition.topic(), new TreeMap<>()).get(partition.partition());
            if (next != null && next != UNKNOWN_POSITION) {
                offsets.put(partition, new OffsetAndMetadata(next));
            }
        }
        return offsets;
    }

    void delivered(ConsumerRecords<byte[], byte[]> records) {
        for (TopicPartition partition : records.partitions()) {
            Delivery delivery = null;
            for (ConsumerRecord<byte[], byte[]> record : records.records(partition)) {
                if (delivery == null || !delivery.append(record.offset(), record.value())) {
                    if (delivery != null) {
                        delivery.write(log, member);
                    }
                    delivery = new Delivery(record.topic(), record.partition(), record.offset(), record.value());
                }
                SortedMap<Integer, Long> own = positions.get(record.topic());
                if (own != null && own.containsKey(record.partition())) {
                    own.put(record.partition(), record.offset() + 1);
                }
            }
            if (delivery != null) {
                delivery.write(log, member);
            }
        }
    }

    private void committed(Map<TopicPartition, OffsetAndMetadata> offsets) {
        long nowUs = EventLog.monoUs();
        offsets.forEach((partition, offset) ->
                log.writeCommit(member, nowUs, partition.topic(), partition.partition(), offset.offset()));
    }

    /** Sees the commits of its consumer. */
    public static final class Commits implements ConsumerInterceptor<byte[], byte[]> {
        private Ownership ownership;

        @Override
        public void configure(Map<String, ?> settings) {
            ownership = (Ownership) settings.get(OBSERVER);
        }

        @Override
        public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
            return records;
        }

        @Override
        public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
            ownership.committed(offsets);
        }

        @Override
        public void close() {}
    }
}
