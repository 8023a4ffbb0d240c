import com.sun.tools.attach.VirtualMachine;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import javax.management.Attribute;
import javax.management.InstanceNotFoundException;
import javax.management.JMException;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Reads a Kafka broker's own counters. Each line of the input is the broker's process id; each answer is one line,
 * {@code KIND REQUESTS BYTES KIND REQUESTS BYTES …} since the broker's start, or {@code - REASON}.
 *
 * <p>It attaches to the broker's Java (same user, same machine), so the broker needs no open JMX port.
 */
public final class BrokerCounts {
    /**
     * Requests that consumers send as members of a group, without Fetch and Produce, which move records. An agent that
     * starts asks who is a member of a group of its name.
     */
    private static final String[] KINDS = {
        "ApiVersions", "ConsumerGroupDescribe", "ConsumerGroupHeartbeat", "DescribeGroups", "FindCoordinator", "Heartbeat",
        "JoinGroup", "LeaveGroup", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "OffsetForLeaderEpoch", "SyncGroup"
    };

    private static final int SIGQUIT = 3;

    private BrokerCounts() {}

    public static void main(String[] arguments) throws IOException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Map<String, MBeanServerConnection> known = new HashMap<>(); // attaching anew would cost 0.1 s each time
        for (String pid = input.readLine(); pid != null; pid = input.readLine()) {
            String answer;
            try {
                MBeanServerConnection broker = known.get(pid);
                if (broker == null) {
                    broker = JMXConnectorFactory.connect(new JMXServiceURL(addressOf(pid))).getMBeanServerConnection();
                    known.put(pid, broker);
                }
                answer = read(broker);
            } catch (Exception error) { // a starting or ending broker fails in many ways; the caller tries again
                known.remove(pid);
                answer = "- " + error.toString().lines().findFirst().orElse("");
            }
            System.out.println(answer);
        }
    }

    private static String addressOf(String pid) throws Exception {
        if (!catchesQuit(pid)) {
            throw new IOException("it has just started");
        }
        VirtualMachine machine = VirtualMachine.attach(pid);
        try {
            return machine.startLocalManagementAgent();
        } finally {
            machine.detach();
            Files.deleteIfExists(Path.of("/tmp", ".java_pid" + pid)); // a killed broker would leave it behind
        }
    }

    /** Attaching sends SIGQUIT, which would end a Java that does not catch it yet. */
    private static boolean catchesQuit(String pid) throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc", pid, "status"))) {
            if (line.startsWith("SigCgt:")) {
                return (Long.parseUnsignedLong(line.substring(7).trim(), 16) & (1L << (SIGQUIT - 1))) != 0;
            }
        }
        return false;
    }

    private static String read(MBeanServerConnection broker) throws IOException, JMException {
        StringBuilder line = new StringBuilder();
        for (String kind : KINDS) {
            ObjectName name = new ObjectName("kafka.network:type=RequestMetrics,name=RequestBytes,request=" + kind);
            try {
                long count = 0;
                double mean = 0;
                for (Attribute attribute : broker.getAttributes(name, new String[] {"Count", "Mean"}).asList()) {
                    if (attribute.getName().equals("Count")) {
                        count = (Long) attribute.getValue();
                    } else {
                        mean = (Double) attribute.getValue();
                    }
                }
                line.append(kind).append(' ').append(count).append(' ').append(Math.round(count * mean)).append(' ');
            } catch (InstanceNotFoundException error) {
                continue; // unknown to this version of Kafka
            }
        }
        return line.toString().trim();
    }
}
