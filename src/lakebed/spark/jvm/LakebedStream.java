package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A table that is followed. The bridge makes the offsets: it decides where a batch ends, and what the batch reads. */
final class LakebedStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final Followed table;
  private final StructType columns;
  private final Map<String, String> options;
  private Long until;

  /** The followed table with the columns of one of its schemas; {@code more} is part of each request. */
  record Followed(Lake lake, String table, String branch, int schemaId, Map<String, Object> more) {}

  LakebedStream(Followed table, StructType columns, CaseInsensitiveStringMap options) {
    this.table = table;
    this.columns = columns;
    this.options = new HashMap<>(options.asCaseSensitiveMap());
    this.options.replaceAll((name, value) -> name.equalsIgnoreCase("timestamp") ? Instants.of(value) : value);
  }

  /** The end of a batch, as the bridge wrote it. */
  private static final class Place extends Offset {
    private final String text;

    Place(String text) {
      this.text = text;
    }

    @Override
    public String json() {
      return text;
    }
  }

  private Object[] body(Object... more) {
    List<Object> body =
        new ArrayList<>(
            Arrays.asList(
                "table", table.table, "branch", table.branch, "schema_id", table.schemaId, "options", options));
    table.more.forEach((name, value) -> body.addAll(List.of(name, value)));
    body.addAll(Arrays.asList(more));
    return body.toArray();
  }

  @Override
  public Offset initialOffset() {
    return new Place(table.lake.ask("stream_first", body()).get("offset").asText());
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new Place(json);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return ReadLimit.maxFiles(Integer.MAX_VALUE); // a trigger that wants everything passes its own limit
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    until = table.lake.ask("stream_newest", body()).get("snapshot_id").asLong();
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    boolean everything = limit instanceof ReadAllAvailable;
    JsonNode next =
        table.lake.ask("stream_next", body("start", start.json(), "everything", everything, "until", until));
    return new Place(next.get("offset").asText());
  }

  @Override
  public Offset latestOffset() {
    throw new IllegalStateException("a stream with limits is asked for the offset after another one");
  }

  @Override
  public void commit(Offset end) {
    table.lake.ask("stream_done", body("end", end.json()));
  }

  @Override
  public void stop() {}

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    JsonNode plan =
        table.lake.ask(
            "stream_plan",
            body(
                "start", start.json(), "end", end.json(), "columns", Arrays.asList(columns.fieldNames()), "schemes",
                NativeFiles.schemes(), "task_count_min", NativeFiles.parallelism()));
    return Part.of(plan, columns, table.lake.python);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Readers();
  }

  /** A partition of a batch. Each has its own readers, because Spark may ask for their factory before it plans a batch. */
  record Part(InputPartition partition, PartitionReaderFactory readers) implements InputPartition {
    /** The partitions of a plan. */
    static InputPartition[] of(JsonNode plan, StructType columns, String python) {
      PlannedScan planned =
          PlannedScan.of(
              plan, columns, new StructType(), stored -> new Filter[0], python, NativeFiles.isColumnar(columns));
      return Arrays.stream(planned.partitions())
          .map(partition -> new Part(partition, planned.readers()))
          .toArray(InputPartition[]::new);
    }

    @Override
    public String[] preferredLocations() {
      return partition.preferredLocations();
    }

    @Override
    public String toString() {
      return "Part";
    }
  }

  /** Reads each partition with its own readers. */
  static final class Readers implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      Part part = (Part) partition;
      return part.readers().supportColumnarReads(part.partition());
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      Part part = (Part) partition;
      return part.readers().createReader(part.partition());
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      Part part = (Part) partition;
      return part.readers().createColumnarReader(part.partition());
    }
  }
}
