import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One consumer of Kafka's Java client, in a thread of its own; writes what its application sees as events. */
final class JavaMember implements Member, ConsumerRebalanceListener {
    private static final String OBSERVER = "zkrebalancer.observer"; // a setting that Kafka passes on to `Commits`
    private static final Duration POLL_TIMEOUT = Duration.ofMillis(200);
    private static final long UNKNOWN_POSITION = -1;

    private final String name;
    private final EventLog log;
    private final Map<String, Object> settings;
    private final List<String> topics;
    private final String pattern;
    private final long recordWorkUs;
    private final AtomicLong blockedNanos = new AtomicLong();
    private final SortedMap<String, SortedMap<Integer, Long>> positions = new TreeMap<>(); // of owned partitions
    private volatile boolean isLeaving;
    private volatile boolean isClosing;
    private Thread thread;

    JavaMember(
            String name,
            Map<String, Object> settings,
            List<String> topics,
            String pattern,
            long recordWorkUs,
            EventLog log) {
        this.name = name;
        this.settings = settings;
        this.topics = topics;
        this.pattern = pattern;
        this.recordWorkUs = recordWorkUs;
        this.log = log;
        settings.put("interceptor.classes", List.of(Commits.class.getName()));
        settings.put(OBSERVER, this);
    }

    @Override
    public void join() {
        thread = new Thread(this::run, name);
        thread.start();
    }

    @Override
    public void leave() {
        isLeaving = true;
        try {
            thread.join();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void block(long milliseconds) {
        blockedNanos.set(TimeUnit.MILLISECONDS.toNanos(milliseconds));
    }

    private void run() {
        log.write("member_joined", name, EventLog.monoUs(), EventLog.fields());
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            if (pattern == null) {
                consumer.subscribe(topics, this);
            } else {
                consumer.subscribe(Pattern.compile(pattern), this);
            }
            while (!isLeaving) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL_TIMEOUT);
                deliver(records);
                work(blockedNanos.getAndSet(0) + TimeUnit.MICROSECONDS.toNanos(recordWorkUs * records.count()));
            }
            isClosing = true;
        }
        stopped("closed"); // a static member's partitions are not revoked
        log.write("member_left", name, EventLog.monoUs(), EventLog.fields().put("reason", "closed"));
    }

    private void deliver(ConsumerRecords<byte[], byte[]> records) {
        for (TopicPartition partition : records.partitions()) {
            Delivery delivery = null;
            for (ConsumerRecord<byte[], byte[]> record : records.records(partition)) {
                if (delivery == null || !delivery.append(record.offset(), record.value())) {
                    if (delivery != null) {
                        delivery.write(log, name);
                    }
                    delivery = new Delivery(record.topic(), record.partition(), record.offset(), record.value());
                }
                SortedMap<Integer, Long> own = positions.get(record.topic());
                if (own != null && own.containsKey(record.partition())) {
                    own.put(record.partition(), record.offset() + 1);
                }
            }
            if (delivery != null) {
                delivery.write(log, name);
            }
        }
    }

    private static void work(long nanos) {
        try {
            TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    // Callbacks, within `poll` and `close` ----------------------------------------------------------------------------

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        long nowUs = EventLog.monoUs();
        SortedMap<String, SortedMap<Integer, Long>> started = new TreeMap<>();
        for (TopicPartition partition : partitions) {
            started.computeIfAbsent(partition.topic(), ignored -> new TreeMap<>())
                    .put(partition.partition(), UNKNOWN_POSITION);
        }
        started.forEach((topic, own) -> {
            positions.computeIfAbsent(topic, ignored -> new TreeMap<>()).putAll(own);
            log.write("fetcher_started", name, nowUs, EventLog.partitions(topic, own));
        });
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        stopped(partitions, isClosing ? "closed" : "revoked");
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        stopped(partitions, isClosing ? "closed" : "lost");
    }

    private void stopped(Collection<TopicPartition> partitions, String reason) {
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
                log.write("fetcher_stopped", name, nowUs, EventLog.partitions(topic, own).put("reason", reason)));
    }

    private void stopped(String reason) {
        List<TopicPartition> all = positions.entrySet().stream()
                .flatMap(topic -> topic.getValue().keySet().stream()
                        .map(partition -> new TopicPartition(topic.getKey(), partition)))
                .toList();
        stopped(all, reason);
    }

    private void committed(Map<TopicPartition, OffsetAndMetadata> offsets) {
        long nowUs = EventLog.monoUs();
        offsets.forEach((partition, offset) -> {
            log.writeCommit(name, nowUs, partition.topic(), partition.partition(), offset.offset());
        });
    }

    /** Sees the automatic commits of its consumer. */
    public static final class Commits implements ConsumerInterceptor<byte[], byte[]> {
        private JavaMember member;

        @Override
        public void configure(Map<String, ?> settings) {
            member = (JavaMember) settings.get(OBSERVER);
        }

        @Override
        public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
            return records;
        }

        @Override
        public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
            member.committed(offsets);
        }

        @Override
        public void close() {}
    }
}
