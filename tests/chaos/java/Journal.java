import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.shaded.com.google.gson.Gson;

/** As journal.py: one write per entry, so that entries before a SIGKILL are kept. */
final class Journal {
    private final Gson gson = new Gson();
    private final OutputStream file;

    Journal(String path) throws IOException {
        file = new FileOutputStream(path, true);
    }

    synchronized void write(String word, Object... values) {
        // On Linux nanoTime is CLOCK_MONOTONIC, as Python's time.monotonic is.
        List<Object> entry = new ArrayList<>(
            List.of(System.nanoTime() / 1e9, System.currentTimeMillis() / 1e3, word));
        entry.addAll(Arrays.asList(values));
        try {
            file.write((gson.toJson(entry) + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
