import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Map;

/**
 * Appends events to {@code <directory>/<process>-<pid>.jsonl}, like zkrebalancer/observe/events.py: each line is one
 * write on an append-only descriptor, so a killed process leaves at most a torn last line.
 *
 * <p>{@code mono_us} is comparable with Python's {@code time.monotonic_ns()}: on Linux both read CLOCK_MONOTONIC.
 */
final class EventLog {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final OutputStream file;
    private final String host;
    private final String process;
    private final String group;

    EventLog(Path directory, String process, String group) throws IOException {
        this.file =
                new FileOutputStream(
                        directory.resolve(process + "-" + ProcessHandle.current().pid() + ".jsonl").toFile(), true);
        this.host = InetAddress.getLocalHost().getHostName();
        this.process = process;
        this.group = group;
    }

    /** Return empty fields for a new event. */
    static ObjectNode fields() {
        return JSON.createObjectNode();
    }

    /** Return the fields of an event about partitions of a topic: partition to position, in this order. */
    static ObjectNode partitions(String topic, Map<Integer, Long> positions) {
        ObjectNode fields = fields().put("topic", topic);
        ArrayNode partitions = fields.putArray("partitions");
        ArrayNode offsets = fields.putArray("positions");
        positions.forEach((partition, position) -> {
            partitions.add(partition);
            offsets.add(position);
        });
        return fields;
    }

    static long monoUs() {
        return System.nanoTime() / 1_000;
    }

    static long wallUs() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    void writeCommit(String member, long monoUs, String topic, int partition, long offset) {
        ObjectNode fields = fields().put("topic", topic).put("partition", partition).put("offset", offset);
        write("committed", member, monoUs, fields);
    }

    /** Return a member's group, which its name begins with if there are several. */
    static String groupOf(String member, String only) {
        int end = member.lastIndexOf('.');
        return end < 0 ? only : member.substring(0, end);
    }

    /** Write one event of a member; {@code monoUs} is when it happened. */
    void write(String kind, String member, long monoUs, ObjectNode fields) {
        ObjectNode event = JSON.createObjectNode();
        event.put("ts_us", wallUs()).put("mono_us", monoUs).put("host", host).put("process", process);
        event.put("kind", kind).put("group", groupOf(member, group)).putNull("generation").putNull("cause_id").put("member", member);
        event.setAll(fields);
        try {
            file.write((event + "\n").getBytes(java.nio.charset.StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
