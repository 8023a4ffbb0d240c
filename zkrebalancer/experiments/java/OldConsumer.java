import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.consumer.ConsumerConfig;
import kafka.javaapi.consumer.ZookeeperConsumerConnector;

/**
 * A process with any number of Kafka's old high-level consumers, which assign partitions themselves through ZooKeeper.
 *
 * <p>Options, orders and events are those of {@code python -m zkrebalancer.experiments.members.program}:
 *
 * <pre>
 * join MEMBER                   a new consumer joins
 * leave MEMBER                  it closes; the name may join again
 * block MEMBER MILLISECONDS     its application is busy with the next record for this time
 * </pre>
 *
 * <p>The event file appears when the process is ready. At the end of the input, or after SIGTERM, every member leaves.
 */
public final class OldConsumer {
    private final Map<String, Member> members = new HashMap<>();
    private final Map<String, Thread> orders = new HashMap<>(); // each member's last order, which may be in progress
    private final Map<String, List<String>> options;
    private final EventLog log;

    private OldConsumer(Map<String, List<String>> options) throws IOException {
        this.options = options;
        this.log = new EventLog(Path.of(option("events")), option("process"), option("group"));
    }

    public static void main(String[] arguments) throws IOException, InterruptedException {
        Map<String, List<String>> options = new LinkedHashMap<>();
        for (int at = 0; at < arguments.length; at += 2) {
            options.computeIfAbsent(arguments[at].replaceFirst("--", ""), ignored -> new ArrayList<>())
                    .add(arguments[at + 1]);
        }
        warmUp(options.get("zookeeper").get(0));
        OldConsumer process = new OldConsumer(options);
        Thread.setDefaultUncaughtExceptionHandler(OldConsumer::fail);
        Runtime.getRuntime().addShutdownHook(new Thread(process::end));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            process.obey(line.split(" "));
        }
        System.exit(0); // runs the shutdown hook
    }

    /** Load every class that a rebalance needs, so that the first join does not wait for the disk. */
    private static void warmUp(String zookeeper) {
        Properties settings = new Properties();
        settings.setProperty("zookeeper.connect", zookeeper);
        settings.setProperty("group.id", "warm-up-" + ProcessHandle.current().pid());
        ZookeeperConsumerConnector connector = new ZookeeperConsumerConnector(new ConsumerConfig(settings));
        connector.createMessageStreams(Map.of("warm-up", 1));
        connector.shutdown();
    }

    private synchronized void obey(String[] order) {
        String name = order[1];
        Thread before = orders.get(name);
        Runnable work =
                switch (order[0]) {
                    case "join" -> () -> join(name);
                    case "leave" -> () -> leave(name);
                    case "block" -> () -> member(name).block(Long.parseLong(order[2]));
                    default -> throw new IllegalArgumentException("no such order: " + String.join(" ", order));
                };
        Thread thread = new Thread(() -> {
            waitFor(before);
            work.run();
        }, name + "-orders");
        thread.setDaemon(true);
        orders.put(name, thread);
        thread.start();
    }

    private void join(String name) {
        leave(name); // a restart
        Properties settings = new Properties();
        settings.setProperty("zookeeper.connect", option("zookeeper"));
        settings.setProperty("group.id", option("group"));
        settings.setProperty("client.id", name);
        // Ranges are assigned in the order of these names, which by default begin with the host's name. With the member's
        // name first, a returning member gets its old place; the suffix avoids the node of its killed predecessor.
        settings.setProperty("consumer.id", name + "-" + Long.toHexString(System.nanoTime()));
        settings.setProperty("auto.offset.reset", "smallest");
        for (String pair : options.getOrDefault("config", List.of())) {
            settings.setProperty(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        long recordWorkUs = Long.parseLong(options.getOrDefault("record-work-us", List.of("0")).get(0));
        Member member = new Member(name, settings, recordWorkUs, log);
        synchronized (this) {
            members.put(name, member);
        }
        Map<String, Integer> topics = new HashMap<>();
        options.getOrDefault("topic", List.of()).forEach(topic -> topics.put(topic, 1));
        member.join(topics, options.containsKey("pattern") ? option("pattern") : null);
    }

    private void leave(String name) {
        Member member;
        synchronized (this) {
            member = members.remove(name);
        }
        if (member != null) {
            member.leave();
        }
    }

    private synchronized Member member(String name) {
        return members.get(name);
    }

    /** End the process at once: after a failure its members would no longer follow their orders. */
    private static void fail(Thread thread, Throwable error) {
        System.err.println(thread.getName() + " has failed:");
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    /** Let all members leave at once; exits with 0, also after a signal. */
    private void end() {
        List<String> names;
        synchronized (this) {
            names = List.copyOf(orders.keySet());
        }
        names.forEach(name -> obey(new String[] {"leave", name}));
        names.forEach(name -> waitFor(orders.get(name)));
        Runtime.getRuntime().halt(0);
    }

    private static void waitFor(Thread thread) {
        try {
            if (thread != null) {
                thread.join();
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private String option(String name) {
        return options.get(name).get(0);
    }
}
