import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, whose start costs more than they do.
 *
 * <p>Each line of the input is a class with a {@code main}, and its arguments. After what the tool prints comes a line
 * {@code exit CODE}.
 */
public final class Tools {
    private static final class Ended extends RuntimeException {}

    private static Integer code; // of the first exit: some tools catch what ends them, and exit again

    public static void main(String[] arguments) throws IOException, ReflectiveOperationException {
        System.setErr(System.out);
        Exit.setExitProcedure((exitCode, message) -> {
            code = code == null ? exitCode : code;
            throw new Ended();
        });
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            code = null;
            run(Class.forName(words[0]), Arrays.copyOfRange(words, 1, words.length));
            System.out.println("exit " + (code == null ? 0 : code));
        }
    }

    private static void run(Class<?> tool, String[] arguments) throws ReflectiveOperationException {
        try {
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                throw error;
            }
        }
    }
}
