import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.helix.HelixManager;
import org.apache.helix.HelixManagerProperty;
import org.apache.helix.InstanceType;
import org.apache.helix.manager.zk.ZKHelixManager;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One participant of a Helix cluster, with a consumer of Kafka's Java client that reads what Helix assigns.
 *
 * <p>Helix orders changes of single partitions, many at once, in threads of its own. The application's thread applies
 * all that wait between two polls: it commits what it gives up, and only then do those transitions end.
 */
final class HelixMember implements Member {
    /** What Helix orders, or (LOST) what the end of a session implies. */
    enum Order {
        ONLINE,
        OFFLINE,
        LOST
    }

    private record Change(TopicPartition partition, Order order, CompletableFuture<Void> done) {}

    private static final long DEFAULT_COMMIT_INTERVAL_MS = 5_000; // of Kafka's clients

    private final String name;
    private final EventLog log;
    private final Map<String, Object> settings;
    private final long recordWorkUs;
    private final long commitIntervalNanos;
    private final HelixManager manager;
    private final Ownership ownership;
    private final AtomicLong blockedNanos = new AtomicLong();
    private final LinkedBlockingQueue<Change> changes = new LinkedBlockingQueue<>();
    private final CountDownLatch hasStopped = new CountDownLatch(1); // nothing is owned any more
    private final Map<TopicPartition, OffsetAndMetadata> committed = new HashMap<>();
    private volatile KafkaConsumer<byte[], byte[]> consumer;
    private volatile boolean isLeaving;
    private boolean isClosed; // guarded by `changes`: nobody applies changes any more
    private long nextCommit = System.nanoTime();
    private Thread thread;

    HelixMember(
            String name, String cluster, String zookeeper, Map<String, Object> settings, long recordWorkUs, EventLog log) {
        this.name = name;
        this.log = log;
        this.settings = settings;
        this.recordWorkUs = recordWorkUs;
        Object interval = settings.getOrDefault("auto.commit.interval.ms", DEFAULT_COMMIT_INTERVAL_MS);
        this.commitIntervalNanos = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(interval.toString()));
        this.ownership = new Ownership(name, log);
        ownership.observe(settings);
        // With properties given, it opens and closes one session to read the cluster's configuration, otherwise two.
        HelixManagerProperty property = new HelixManagerProperty.Builder().build();
        this.manager = new ZKHelixManager(cluster, name, InstanceType.PARTICIPANT, zookeeper, null, property);
        manager.getStateMachineEngine()
                .registerStateModelFactory(HelixCluster.MODEL, new HelixPartition.Factory(this));
    }

    /** Join the cluster; returns when Helix knows this member. */
    @Override
    public void join() {
        log.write("member_joined", name, EventLog.monoUs(), EventLog.fields());
        thread = new Thread(this::run, name);
        thread.start();
        try {
            manager.connect();
        } catch (Exception error) { // declared so
            throw new IllegalStateException(error);
        }
    }

    /** Commit and give up everything, then end the session. */
    @Override
    public void leave() {
        isLeaving = true;
        wakeUp();
        try {
            hasStopped.await();
            manager.disconnect();
            thread.join();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        log.write("member_left", name, EventLog.monoUs(), EventLog.fields().put("reason", "closed"));
    }

    @Override
    public void block(long milliseconds) {
        blockedNanos.set(TimeUnit.MILLISECONDS.toNanos(milliseconds));
    }

    // Helix's threads -------------------------------------------------------------------------------------------------

    /** Have a change applied, and wait for it; a member that has left owns nothing, and takes nothing on. */
    void change(TopicPartition partition, Order order) {
        Change change = new Change(partition, order, new CompletableFuture<>());
        synchronized (changes) {
            if (isClosed) {
                refuse(change);
            } else {
                changes.add(change);
            }
        }
        wakeUp();
        try {
            change.done.get();
        } catch (ExecutionException error) {
            throw new IllegalStateException(error.getCause());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    private void wakeUp() {
        KafkaConsumer<byte[], byte[]> polling = consumer;
        if (polling != null) {
            polling.wakeup();
        }
    }

    private void refuse(Change change) {
        if (change.order == Order.ONLINE) {
            change.done.completeExceptionally(new IllegalStateException(name + " leaves"));
        } else {
            change.done.complete(null);
        }
    }

    // The application's thread ----------------------------------------------------------------------------------------

    private void run() {
        try (KafkaConsumer<byte[], byte[]> own =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer = own;
            while (!isLeaving) {
                apply(waiting());
                long count = ownership.all().isEmpty() ? 0 : read();
                JavaMember.work(blockedNanos.getAndSet(0) + TimeUnit.MICROSECONDS.toNanos(recordWorkUs * count));
            }
            close();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        } finally {
            hasStopped.countDown();
        }
    }

    private void close() {
        List<TopicPartition> all = ownership.all();
        commit(all);
        ownership.stopped(all, "closed");
        synchronized (changes) {
            isClosed = true;
            changes.forEach(this::refuse);
        }
        hasStopped.countDown();
    }

    /** Return the changes that wait; without any partitions there is nothing else to wait for. */
    private List<Change> waiting() throws InterruptedException {
        List<Change> waiting = new ArrayList<>();
        if (ownership.all().isEmpty()) {
            Change first = changes.poll(JavaMember.POLL_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
            if (first != null) {
                waiting.add(first);
            }
        }
        changes.drainTo(waiting);
        return waiting;
    }

    private void apply(List<Change> waiting) {
        if (waiting.isEmpty()) {
            return;
        }
        Set<TopicPartition> all = new LinkedHashSet<>(ownership.all());
        Map<Order, List<TopicPartition>> ordered = new HashMap<>();
        waiting.forEach(change ->
                ordered.computeIfAbsent(change.order, ignored -> new ArrayList<>()).add(change.partition));
        List<TopicPartition> revoked = ordered.getOrDefault(Order.OFFLINE, List.of());
        commit(revoked);
        ownership.stopped(revoked, "revoked");
        ownership.stopped(ordered.getOrDefault(Order.LOST, List.of()), "lost");
        all.retainAll(ownership.all());
        List<TopicPartition> started = ordered.getOrDefault(Order.ONLINE, List.of());
        all.addAll(started);
        consumer.assign(all);
        ownership.started(started);
        waiting.forEach(change -> change.done.complete(null));
    }

    private long read() {
        try {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(JavaMember.POLL_TIMEOUT);
            ownership.delivered(records);
            commitInTime();
            return records.count();
        } catch (WakeupException changed) {
            return 0;
        }
    }

    private void commitInTime() {
        if (System.nanoTime() - nextCommit >= 0) {
            Map<TopicPartition, OffsetAndMetadata> due = due(ownership.all());
            if (!due.isEmpty()) {
                consumer.commitAsync(due, (offsets, error) -> {
                    if (error == null) {
                        committed.putAll(offsets);
                    }
                });
            }
            nextCommit = System.nanoTime() + commitIntervalNanos;
        }
    }

    private Map<TopicPartition, OffsetAndMetadata> due(List<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> due = ownership.offsets(partitions);
        due.entrySet().removeIf(entry -> entry.getValue().equals(committed.get(entry.getKey())));
        return due;
    }

    /** Commit what is given up; without an answer its next owner reads some records again. */
    private void commit(List<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> due = due(partitions);
        while (!due.isEmpty()) {
            try {
                consumer.commitSync(due);
                due = Map.of();
            } catch (WakeupException changed) { // another change waits: first end this one
            } catch (KafkaException error) {
                System.err.println(name + " gives up without a commit: " + error);
                due = Map.of();
            }
        }
        partitions.forEach(committed::remove);
    }
}
