import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * The format's Java implementation behind JSON lines: one request a line on standard input, one answer a line on
 * standard output, {"answer": ...} or {"error": "...", "trace": "..."}.
 *
 * <p>A request has a verb, a warehouse (a folder), a table ("database.name") and the verb's own words; see Rows and
 * Upkeep.
 */
public final class Worker {
    interface Verb {
        Object run(JsonNode request) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        System.setOut(System.err); // libraries print there
        Map<String, Verb> verbs = new TreeMap<>();
        Rows.register(verbs);
        Upkeep.register(verbs);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(Values.JSON.writeValueAsString(answer(verbs, line)));
            answers.flush();
        }
        System.exit(0); // threads of the client's pools would keep the process
    }

    private static ObjectNode answer(Map<String, Verb> verbs, String line) {
        ObjectNode answer = Values.JSON.createObjectNode();
        try {
            JsonNode request = Values.JSON.readTree(line);
            Verb verb = verbs.get(request.get("verb").textValue());
            if (verb == null) {
                throw new IllegalArgumentException("the worker knows " + verbs.keySet() + ", not " + request.get("verb"));
            }
            Object found = verb.run(request);
            answer.set("answer", found instanceof JsonNode ? (JsonNode) found : Values.JSON.valueToTree(found));
        } catch (Throwable error) { // every failure of the client is an answer: the test decides what it means
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            Throwable root = error;
            while (root.getCause() != null && root.getCause() != root) {
                root = root.getCause();
            }
            answer.put("error", error + (root == error ? "" : " <- " + root));
            answer.put("trace", trace.toString());
        }
        return answer;
    }
}
