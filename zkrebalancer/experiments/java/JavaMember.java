import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One consumer of Kafka's Java client, in a thread of its own; writes what its application sees as events. */
final class JavaMember implements Member, ConsumerRebalanceListener {
    static final Duration POLL_TIMEOUT = Duration.ofMillis(20); // with KIP-848, it rebalances in polls only

    private final String name;
    private final EventLog log;
    private final Map<String, Object> settings;
    private final List<String> topics;
    private final String pattern;
    private final long recordWorkUs;
    private final AtomicLong blockedNanos = new AtomicLong();
    private final Ownership ownership;
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
        this.ownership = new Ownership(name, log);
        ownership.observe(settings);
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
                ownership.delivered(records);
                work(blockedNanos.getAndSet(0) + TimeUnit.MICROSECONDS.toNanos(recordWorkUs * records.count()));
            }
            isClosing = true;
        }
        ownership.stopped(ownership.all(), "closed"); // a static member's partitions are not revoked
        log.write("member_left", name, EventLog.monoUs(), EventLog.fields().put("reason", "closed"));
    }

    static void work(long nanos) {
        try {
            TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    // Callbacks, within `poll` and `close` ----------------------------------------------------------------------------

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        ownership.started(partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        ownership.stopped(partitions, isClosing ? "closed" : "revoked");
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        ownership.stopped(partitions, isClosing ? "closed" : "lost");
    }
}
