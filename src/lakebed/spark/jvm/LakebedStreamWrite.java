package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/** A batch of a stream. It is committed under the query and its number, so only once, however often Spark runs it. */
final class LakebedStreamWrite extends LakebedWrite implements StreamingWrite {
  static final String APPLICATION = "txn-app-id";

  private final LogicalWriteInfo info;
  private final long created;
  private long batch;

  LakebedStreamWrite(LakebedTable table, Map<String, Object> replaced, LogicalWriteInfo info) {
    super(table, replaced, false);
    this.info = info;
    this.created = table.created();
  }

  @Override
  StructType rows() {
    return info.schema(); // Spark does not adapt the columns of a stream to those of the table
  }

  @Override
  JsonNode resolved() {
    return null;
  }

  @Override
  Map<String, Object> batch() {
    return Map.of(
        "user", info.options().getOrDefault(APPLICATION, info.queryId()), "number", batch, "created_ms", created);
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    return new Tasks(createBatchWriterFactory(info));
  }

  @Override
  public boolean useCommitCoordinator() {
    return super.useCommitCoordinator();
  }

  @Override
  public void commit(long number, WriterCommitMessage[] messages) {
    batch = number;
    commit(messages);
  }

  @Override
  public void abort(long number, WriterCommitMessage[] messages) {
    abort(messages);
  }

  /** The writers of a batch's tasks. */
  private record Tasks(DataWriterFactory factory) implements StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return factory.createWriter(partition, task);
    }
  }
}
