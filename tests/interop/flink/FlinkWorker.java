import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.apache.flink.api.common.JobID;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * A Flink cluster in one process, which runs the statements that come as JSON, a request a line.
 *
 * <p>A request has a verb, and the answer is {"answer": ...}, or {"error": message, "trace": text}.
 */
public class FlinkWorker {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final MiniCluster cluster;
    private final Configuration remote;
    private final Map<String, Followed> followed = new HashMap<>();
    private Map<String, String> catalog = new HashMap<>();

    /** A query that runs on, and the rows that it has given so far. */
    private static final class Followed {
        final TableResult result;
        final List<List<Object>> rows = new ArrayList<>();
        String problem;

        Followed(TableResult result) {
            this.result = result;
        }

        void collect() {
            try (CloseableIterator<Row> iterator = result.collect()) {
                while (iterator.hasNext()) {
                    List<Object> row = values(iterator.next());
                    synchronized (this) {
                        rows.add(row);
                    }
                }
            } catch (Throwable error) {
                synchronized (this) {
                    problem = trace(error);
                }
            }
        }
    }

    private FlinkWorker() throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("rest.address", "localhost");
        configuration.setString("rest.bind-port", "0");
        configuration.setString("taskmanager.memory.managed.size", "64m");
        configuration.setString("taskmanager.memory.network.min", "64m");
        configuration.setString("taskmanager.memory.network.max", "64m");
        configuration.setString("jobmanager.execution.failover-strategy", "region");
        cluster = new MiniCluster(
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(configuration)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(6)
                        .build());
        cluster.start();
        remote = new Configuration();
        remote.setString("execution.target", "remote");
        remote.setString("rest.address", "localhost");
        remote.setString("rest.port", String.valueOf(cluster.getRestAddress().get().getPort()));
        remote.setString("parallelism.default", "1");
        remote.setString("restart-strategy.type", "none");
        remote.setString("table.exec.sink.upsert-materialize", "NONE");
    }

    private TableEnvironment environment(JsonNode request) {
        boolean streams = request.path("streaming").asBoolean(false);
        Configuration configuration = new Configuration(remote);
        configuration.setString("table.dml-sync", String.valueOf(!streams));
        if (request.path("statements").path(0).asText().startsWith("CALL ")) {
            // A procedure runs its jobs in a cluster of its own, which takes a port of its own.
            List.of("execution.target", "rest.address", "rest.port").forEach(configuration::removeKey);
        }
        request.path("options").fields().forEachRemaining(
                option -> configuration.setString(option.getKey(), option.getValue().asText()));
        EnvironmentSettings.Builder settings = EnvironmentSettings.newInstance().withConfiguration(configuration);
        TableEnvironment tables =
                TableEnvironment.create((streams ? settings.inStreamingMode() : settings.inBatchMode()).build());
        StringBuilder text = new StringBuilder("CREATE CATALOG lake WITH ('type'='paimon'");
        catalog.forEach((name, value) -> text.append(", '").append(name).append("'='").append(value).append("'"));
        tables.executeSql(text + ")");
        tables.executeSql("USE CATALOG lake");
        return tables;
    }

    private Object answer(JsonNode request) throws Exception {
        String verb = request.path("verb").asText();
        switch (verb) {
            case "catalog":
                catalog = new HashMap<>();
                request.path("catalog").fields().forEachRemaining(
                        option -> catalog.put(option.getKey(), option.getValue().asText()));
                return null;
            case "run":
                return run(request);
            case "start":
                return start(request);
            case "follow":
                return follow(request);
            case "rows": {
                Followed query = followed.get(request.path("name").asText());
                synchronized (query) {
                    if (query.problem != null) {
                        throw new IllegalStateException(query.problem);
                    }
                    return new ArrayList<>(query.rows);
                }
            }
            case "status":
                return cluster.getJobStatus(job(request)).get().name();
            case "failure": {
                var failure = cluster.requestJobResult(job(request)).get(120, TimeUnit.SECONDS).getSerializedThrowable();
                return failure.isPresent() ? trace(failure.get()) : null;
            }
            case "cancel":
                cluster.cancelJob(job(request)).get();
                return ended(request);
            case "savepoint": {
                String path = cluster.stopWithSavepoint(
                                job(request), request.path("path").asText(), false, SavepointFormatType.CANONICAL)
                        .get(120, TimeUnit.SECONDS);
                ended(request);
                return path;
            }
            case "lose-tasks":
                cluster.terminateTaskManager(0).get();
                cluster.startTaskManager();
                return null;
            default:
                throw new IllegalArgumentException("no verb " + verb);
        }
    }

    /** All rows of one or more statements, each as [kind, values...]; of an INSERT none, when it has ended. */
    private Object run(JsonNode request) throws Exception {
        TableEnvironment tables = environment(request);
        List<Object> answers = new ArrayList<>();
        for (JsonNode statement : request.path("statements")) {
            TableResult result = tables.executeSql(statement.asText());
            List<Object> rows = new ArrayList<>();
            try (CloseableIterator<Row> iterator = result.collect()) {
                long limit = request.path("limit").asLong(Long.MAX_VALUE);
                while (rows.size() < limit && iterator.hasNext()) {
                    rows.add(values(iterator.next()));
                }
            }
            answers.add(rows);
        }
        return answers;
    }

    /** Start a job that runs on; its id. */
    private Object start(JsonNode request) throws Exception {
        TableResult result = last(request);
        return result.getJobClient().orElseThrow().getJobID().toHexString();
    }

    private Object follow(JsonNode request) throws Exception {
        Followed query = new Followed(last(request));
        followed.put(request.path("name").asText(), query);
        Thread thread = new Thread(query::collect);
        thread.setDaemon(true);
        thread.start();
        return query.result.getJobClient().orElseThrow().getJobID().toHexString();
    }

    private TableResult last(JsonNode request) {
        TableEnvironment tables = environment(request);
        TableResult result = null;
        for (JsonNode statement : request.path("statements")) {
            result = tables.executeSql(statement.asText());
        }
        return result;
    }

    private Object ended(JsonNode request) throws Exception {
        return cluster.requestJobResult(job(request)).get(120, TimeUnit.SECONDS).getApplicationStatus().name();
    }

    private static JobID job(JsonNode request) {
        return JobID.fromHexString(request.path("job").asText());
    }

    private static List<Object> values(Row row) {
        List<Object> values = new ArrayList<>();
        values.add(row.getKind().shortString());
        for (int i = 0; i < row.getArity(); i++) {
            Object value = row.getField(i);
            boolean isPlain = value == null || value instanceof Integer || value instanceof Long
                    || value instanceof Short || value instanceof Byte || value instanceof Boolean;
            values.add(isPlain ? value : String.valueOf(value));
        }
        return values;
    }

    private static String trace(Throwable error) {
        StringWriter text = new StringWriter();
        error.printStackTrace(new PrintWriter(text));
        return text.toString();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // what libraries print is no answer
        FlinkWorker worker = new FlinkWorker();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, Object> reply = new HashMap<>();
            try {
                reply.put("answer", worker.answer(JSON.readTree(line)));
            } catch (Throwable error) {
                reply.clear();
                Throwable cause = error;
                while (cause.getCause() != null && cause.getCause() != cause) {
                    cause = cause.getCause();
                }
                reply.put("error", String.valueOf(cause.getMessage()));
                reply.put("trace", trace(error));
            }
            output.println(JSON.writeValueAsString(reply));
        }
        System.exit(0); // jobs that run on have no use without who asked for them
    }
}
