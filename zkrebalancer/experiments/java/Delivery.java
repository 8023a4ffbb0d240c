import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.nio.charset.StandardCharsets;

/** A contiguous range of records of one partition that was delivered to the application. */
final class Delivery {
    /** Whether an event has the delay of each record, or that of its last one only. */
    static boolean hasAllDelays = true;

    private final ObjectNode fields = EventLog.fields();
    private final ArrayNode delaysUs;
    private final long firstOffset;
    private long nextOffset;
    private long monoUs;
    private byte[] last;

    Delivery(String topic, int partition, long offset, byte[] value) {
        fields.put("topic", topic).put("partition", partition);
        firstOffset = nextOffset = offset;
        fields.put("first_offset", firstOffset);
        delaysUs = fields.putArray("delays_us");
        append(offset, value);
    }

    /** Add a record if it follows the last one; return whether it does. */
    boolean append(long offset, byte[] value) {
        if (offset != nextOffset) {
            return false;
        }
        nextOffset++;
        last = value;
        if (hasAllDelays) {
            monoUs = EventLog.monoUs();
            delaysUs.add(EventLog.wallUs() - sentAtUs(value));
        }
        return true;
    }

    void write(EventLog log, String member) {
        if (!hasAllDelays) {
            monoUs = EventLog.monoUs();
            delaysUs.add(EventLog.wallUs() - sentAtUs(last));
        }
        fields.put("last_offset", nextOffset - 1).put("count", nextOffset - firstOffset);
        log.write("delivered", member, monoUs, fields);
    }

    /** Return when a record with the value "NUMBER MICROSECONDS" was sent (zkrebalancer/experiments/producer.py). */
    private static long sentAtUs(byte[] value) {
        String text = new String(value, StandardCharsets.US_ASCII);
        return Long.parseLong(text.substring(text.lastIndexOf(' ') + 1));
    }
}
