import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * One consumer of a group; prints what it gets as {@code tests/integration/client_program.py} does.
 *
 * <p>Arguments: the topic, then settings as {@code name=value}. It leaves the group at the end of its input.
 */
public final class GroupReader {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        for (String pair : List.of(arguments).subList(1, arguments.length)) {
            settings.setProperty(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[0]), new Listener());
            String shown = "";
            Thread input = new Thread(GroupReader::awaitEndOfInput);
            input.setDaemon(true);
            input.start();
            while (input.isAlive()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) {
                    say("values", StreamSupport.stream(records.spliterator(), false).map(ConsumerRecord::value));
                }
                String assigned = consumer.assignment().stream()
                        .map(one -> String.valueOf(one.partition()))
                        .collect(Collectors.joining(" "));
                if (!assigned.equals(shown)) {
                    say("assigned", Stream.of(assigned));
                    shown = assigned;
                }
            }
        }
    }

    private static void awaitEndOfInput() {
        try {
            System.in.read();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void say(String what, Stream<String> items) {
        System.out.println(what + " " + items.collect(Collectors.joining(" ")));
    }

    private static final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (!partitions.isEmpty()) {
                System.out.println("revoked");
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
    }
}
