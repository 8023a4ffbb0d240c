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

/**
 * The members of a process. Options, orders and events are those of
 * {@code python -m zkrebalancer.experiments.members.program}:
 *
 * <pre>
 * join MEMBER [INSTANCE]        a new consumer joins; with INSTANCE as a static member, if there are such. GROUP.NAME
 *                               joins GROUP
 * leave MEMBER                  it closes; the name may join again
 * block MEMBER MILLISECONDS     its application is busy with the next records for this time
 * </pre>
 *
 * <p>The event file appears when the process is ready. At the end of the input, or after SIGTERM, every member leaves.
 */
final class Members {
    /** Creates members; {@code instance} is null for those that are not static. */
    interface Factory {
        Member create(String name, String instance, Members process);
    }

    private final Map<String, Member> members = new HashMap<>();
    private final Map<String, Thread> orders = new HashMap<>(); // each member's last order, which may be in progress
    private final Map<String, List<String>> options;
    private final Factory factory;
    final EventLog log;
    final long recordWorkUs;

    private Members(Map<String, List<String>> options, Factory factory) throws IOException {
        this.options = options;
        this.factory = factory;
        this.recordWorkUs = Long.parseLong(options.getOrDefault("record-work-us", List.of("0")).get(0));
        Delivery.hasAllDelays = !options.getOrDefault("delays", List.of("each")).get(0).equals("last");
        this.log = new EventLog(Path.of(option("events")), option("process"), option("group"));
    }

    /** Return the options of a command line: name -> values. */
    static Map<String, List<String>> options(String[] arguments) {
        Map<String, List<String>> options = new LinkedHashMap<>();
        for (int at = 0; at < arguments.length; at += 2) {
            options.computeIfAbsent(arguments[at].replaceFirst("--", ""), ignored -> new ArrayList<>())
                    .add(arguments[at + 1]);
        }
        return options;
    }

    /** Follow the orders until the end of the input, then exit. */
    static void run(Map<String, List<String>> options, Factory factory) throws IOException {
        Members process = new Members(options, factory);
        Thread.setDefaultUncaughtExceptionHandler(Members::fail);
        Runtime.getRuntime().addShutdownHook(new Thread(process::end));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            process.obey(line.split(" "));
        }
        System.exit(0); // runs the shutdown hook
    }

    String option(String name) {
        return options.get(name).get(0);
    }

    /** Return the topics to read, none if there is a pattern. */
    List<String> topics() {
        return options.getOrDefault("topic", List.of());
    }

    /** Return the pattern of the topics to read, null if there is none. */
    String pattern() {
        return options.containsKey("pattern") ? option("pattern") : null;
    }

    /** Return the client's own settings. */
    Map<String, String> settings() {
        return settings(options);
    }

    static Map<String, String> settings(Map<String, List<String>> options) {
        Map<String, String> settings = new HashMap<>();
        for (String pair : options.getOrDefault("config", List.of())) {
            settings.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        return settings;
    }

    int maxPollRecords() {
        return Integer.parseInt(options.getOrDefault("max-poll-records", List.of("500")).get(0));
    }

    private synchronized void obey(String[] order) {
        String name = order[1];
        Thread before = orders.get(name);
        Runnable work =
                switch (order[0]) {
                    case "join" -> () -> join(name, order.length > 2 ? order[2] : null);
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

    private void join(String name, String instance) {
        leave(name); // a restart
        Member member = factory.create(name, instance, this);
        synchronized (this) {
            members.put(name, member);
        }
        member.join();
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
}
