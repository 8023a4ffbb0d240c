import java.lang.reflect.Field;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import kafka.common.OffsetAndMetadata;
import kafka.common.TopicAndPartition;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.ConsumerThreadId;
import kafka.consumer.KafkaStream;
import kafka.consumer.PartitionTopicInfo;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerRebalanceListener;
import kafka.javaapi.consumer.ZookeeperConsumerConnector;
import kafka.message.MessageAndMetadata;
import kafka.utils.Pool;

/**
 * One old consumer with an application that reads its streams; writes what happens as events.
 *
 * <p>The application is careful: it commits its records before a partition is released (the purpose of the rebalance
 * listener), and drops records that the iterator had fetched before the release, which were never committed.
 */
final class OldMember implements Member, ConsumerRebalanceListener {
    private static final long FLUSH_INTERVAL_MS = 100; // one event per partition for the records of this time
    private static final long CLOSE_TIMEOUT_S = 20;

    private final String name;
    private final EventLog log;
    private final ZookeeperConsumerConnector connector;
    private final ScheduledExecutorService scheduler;
    private final long commitIntervalMs;
    private final Map<String, Integer> topics;
    private final String pattern;
    private final long recordWorkUs;
    private final Object commitLock = new Object(); // concurrent commits could set offsets back

    // Guarded by this:
    private final SortedMap<String, SortedMap<Integer, Long>> positions = new TreeMap<>(); // of owned partitions
    private final Map<TopicAndPartition, Delivery> unwritten = new HashMap<>();
    private boolean isReading; // between two rebalances
    private boolean isLeaving;

    private final Map<TopicAndPartition, Long> committed = new HashMap<>(); // guarded by commitLock
    private final AtomicLong blockedNanos = new AtomicLong(); // extra time of the next record

    /** {@code settings} are the consumer's own; a record keeps the application busy for {@code recordWorkUs}. */
    OldMember(
            String name,
            Properties settings,
            Map<String, Integer> topics,
            String pattern,
            long recordWorkUs,
            EventLog log) {
        this.name = name;
        this.log = log;
        this.topics = topics;
        this.pattern = pattern;
        this.recordWorkUs = recordWorkUs;
        log.write("member_joined", name, EventLog.monoUs(), EventLog.fields());
        ConsumerConfig config = new ConsumerConfig(settings);
        this.commitIntervalMs = config.autoCommitIntervalMs();
        this.connector = new ZookeeperConsumerConnector(config);
        this.scheduler = Executors.newSingleThreadScheduledExecutor(daemons(name + "-commits"));
    }

    /** Join the group and start reading; returns after the first rebalance. */
    @Override
    public void join() {
        connector.setConsumerRebalanceListener(this);
        every(FLUSH_INTERVAL_MS, this::flush);
        every(commitIntervalMs, this::commit);
        Collection<List<KafkaStream<byte[], byte[]>>> streams =
                pattern == null
                        ? connector.createMessageStreams(topics).values()
                        : List.of(connector.createMessageStreamsByFilter(new Whitelist(pattern)));
        for (List<KafkaStream<byte[], byte[]>> ofTopic : streams) {
            for (KafkaStream<byte[], byte[]> stream : ofTopic) {
                daemons(name + "-application").newThread(() -> read(stream)).start();
            }
        }
    }

    private void every(long intervalMs, Runnable work) {
        Runnable orFail = () -> {
            try {
                work.run();
            } catch (RuntimeException error) { // the scheduler would hide it
                Thread.getDefaultUncaughtExceptionHandler().uncaughtException(Thread.currentThread(), error);
            }
        };
        scheduler.scheduleWithFixedDelay(orFail, intervalMs, intervalMs, TimeUnit.MILLISECONDS);
    }

    /** Leave: commit what was read, then close the ZooKeeper session. */
    @Override
    public void leave() {
        synchronized (this) {
            isLeaving = true;
        }
        scheduler.shutdown();
        release("closed");
        connector.shutdown();
        release("closed"); // a rebalance may have assigned partitions meanwhile; nothing was read from them
        try {
            scheduler.awaitTermination(CLOSE_TIMEOUT_S, TimeUnit.SECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        log.write("member_left", name, EventLog.monoUs(), EventLog.fields().put("reason", "closed"));
    }

    @Override
    public void block(long milliseconds) {
        blockedNanos.set(TimeUnit.MILLISECONDS.toNanos(milliseconds));
    }

    // The rebalance, in a thread of the connector ---------------------------------------------------------------------

    @Override
    public void beforeReleasingPartitions(Map<String, Set<Integer>> ignored) { // not Java sets: KAFKA-2284
        release(registry().size() == 0 ? "lost" : "revoked"); // an expired session clears it
    }

    @Override
    public synchronized void beforeStartingFetchers(
            String consumer, Map<String, Map<Integer, ConsumerThreadId>> assignment) {
        long nowUs = EventLog.monoUs();
        Pool<String, Pool<Object, PartitionTopicInfo>> registry = registry();
        for (Map.Entry<String, Map<Integer, ConsumerThreadId>> topic : assignment.entrySet()) {
            SortedMap<Integer, Long> own = new TreeMap<>();
            topic.getValue().forEach((partition, thread) -> {
                if (thread.consumer().equals(consumer)) {
                    long stored = registry.get(topic.getKey()).get(partition).getConsumeOffset();
                    own.put(partition, Math.max(stored, 0)); // -1: nothing stored, it begins at the first offset
                }
            });
            if (!own.isEmpty()) {
                positions.put(topic.getKey(), own);
                log.write("fetcher_started", name, nowUs, EventLog.partitions(topic.getKey(), own));
            }
        }
        isReading = true;
    }

    private void release(String reason) {
        synchronized (this) {
            isReading = false;
        }
        if (!reason.equals("lost")) {
            commit();
        }
        synchronized (this) {
            flush();
            long nowUs = EventLog.monoUs();
            positions.forEach((topic, own) ->
                    log.write("fetcher_stopped", name, nowUs, EventLog.partitions(topic, own).put("reason", reason)));
            positions.clear();
        }
    }

    /** Return topic -> partition -> its begin; the public API does not expose it. */
    private Pool<String, Pool<Object, PartitionTopicInfo>> registry() {
        try {
            Field underlying = ZookeeperConsumerConnector.class.getDeclaredField("underlying");
            underlying.setAccessible(true);
            return ((kafka.consumer.ZookeeperConsumerConnector) underlying.get(connector))
                    .kafka$consumer$ZookeeperConsumerConnector$$topicRegistry();
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    // The application, a thread for each stream -----------------------------------------------------------------------

    private void read(KafkaStream<byte[], byte[]> stream) {
        ConsumerIterator<byte[], byte[]> records = stream.iterator();
        while (records.hasNext()) {
            receive(records.next());
            work(blockedNanos.getAndSet(0) + TimeUnit.MICROSECONDS.toNanos(recordWorkUs));
        }
    }

    private static void work(long nanos) {
        try {
            TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized void receive(MessageAndMetadata<byte[], byte[]> record) {
        Map<Integer, Long> own = positions.get(record.topic());
        Long position = own == null ? null : own.get(record.partition());
        if (!isReading || isLeaving || position == null || record.offset() < position) {
            return; // fetched before the last rebalance
        }
        own.put(record.partition(), record.offset() + 1);
        TopicAndPartition partition = new TopicAndPartition(record.topic(), record.partition());
        Delivery delivery = unwritten.get(partition);
        if (delivery == null || !delivery.append(record.offset(), record.message())) {
            if (delivery != null) {
                delivery.write(log, name);
            }
            unwritten.put(partition, new Delivery(record.topic(), record.partition(), record.offset(), record.message()));
        }
    }

    private synchronized void flush() {
        unwritten.values().forEach(delivery -> delivery.write(log, name));
        unwritten.clear();
    }

    private void commit() {
        synchronized (commitLock) {
            Map<TopicAndPartition, OffsetAndMetadata> due = new HashMap<>();
            synchronized (this) {
                flush();
                positions.forEach((topic, own) -> own.forEach((number, position) -> {
                    TopicAndPartition partition = new TopicAndPartition(topic, number);
                    if (!position.equals(committed.get(partition))) {
                        due.put(partition, OffsetAndMetadata.apply(position));
                    }
                }));
            }
            if (due.isEmpty()) {
                return;
            }
            connector.commitOffsets(due, true);
            long nowUs = EventLog.monoUs();
            due.forEach((partition, offset) -> {
                committed.put(partition, offset.offset());
                log.writeCommit(name, nowUs, partition.topic(), partition.partition(), offset.offset());
            });
        }
    }

    static ThreadFactory daemons(String threadName) {
        return work -> {
            Thread thread = new Thread(work, threadName);
            thread.setDaemon(true);
            return thread;
        };
    }
}
