package org.lakebed.spark;

import java.io.IOException;
import java.util.Base64;
import java.util.List;
import java.util.Objects;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The rows of one task, sent to a worker, which writes data files and returns a description of them. */
final class TaskWriter implements DeltaWriter<InternalRow> {
  private static final String OPERATION = "__lakebed_operation";
  private static final InternalRow WRITE = new GenericInternalRow(new Object[] {false});
  private static final InternalRow DELETE = new GenericInternalRow(new Object[] {true});

  private final Factory factory;
  private final int[] keys;
  private Worker worker;
  private ArrowRows.Writer rows;
  private String mistake;

  private TaskWriter(Factory factory) {
    this.factory = factory;
    keys = factory.keys.stream().mapToInt(factory.schema::fieldIndex).toArray();
  }

  /** The result of a task: a pickle in base64, null without rows; or the mistake in its rows. */
  record Result(String encoded, String mistake) implements WriterCommitMessage {
    @Override
    public String toString() {
      return "Result";
    }
  }

  /** Makes the writer of each task. {@code writer} is a pickle with the table's store. */
  static final class Factory implements DeltaWriterFactory {
    private final String python;
    private final byte[] writer;
    private final StructType schema;
    private final List<String> keys;
    private final boolean changes;
    private final boolean marks;

    /** {@code keys}: the columns of a row's id. With {@code marks} they follow the row, and contain its place. */
    Factory(String python, byte[] writer, StructType schema, List<String> keys, boolean changes, boolean marks) {
      this.python = python;
      this.writer = writer;
      this.schema = schema;
      this.keys = List.copyOf(keys);
      this.changes = changes;
      this.marks = marks;
    }

    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new TaskWriter(this);
    }

    /** The columns that are sent. In changes every value may be null, because a deleted row has only a key. */
    private StructType sent() {
      if (!changes) {
        return schema;
      }
      StructType sent = new StructType();
      for (StructField field : schema.fields()) {
        sent = sent.add(field.name(), field.dataType(), true);
      }
      return sent.add(OPERATION, DataTypes.BooleanType, false);
    }
  }

  private void send(InternalRow row) throws IOException {
    if (worker == null) {
      worker = Worker.acquire(Python.orDefault(factory.python));
      worker.out.writeByte('W');
      worker.send(factory.writer);
      rows = new ArrowRows.Writer(factory.sent(), worker.out);
    }
    rows.write(row);
  }

  @Override
  public void write(InternalRow row) throws IOException {
    InternalRow sent = factory.marks ? new JoinedRow(row, new GenericInternalRow(keys.length)) : row;
    send(factory.changes ? new JoinedRow(sent, WRITE) : sent);
  }

  @Override
  public void insert(InternalRow row) throws IOException {
    write(row);
  }

  @Override
  public void delete(InternalRow metadata, InternalRow id) throws IOException {
    Object[] values = new Object[factory.schema.length()];
    for (int i = 0; i < keys.length; i++) {
      values[keys[i]] = id.get(i, type(i));
    }
    send(new JoinedRow(new GenericInternalRow(values), DELETE));
  }

  @Override
  public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
    if (factory.marks) {
      delete(metadata, id);
      write(row);
      return;
    }
    for (int i = 0; i < keys.length; i++) {
      if (!Objects.deepEquals(id.get(i, type(i)), row.get(keys[i], type(i)))) {
        mistake = "An UPDATE changes the primary key column " + factory.keys.get(i) + ": DELETE the row and INSERT another.";
        return;
      }
    }
    write(row);
  }

  private DataType type(int key) {
    return factory.schema.fields()[keys[key]].dataType();
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    if (worker == null) {
      return new Result(null, mistake);
    }
    rows.finish();
    worker.out.flush();
    worker.expectDone();
    String result = Base64.getEncoder().encodeToString(worker.frame());
    rows.close();
    worker.release();
    worker = null;
    return new Result(result, mistake);
  }

  @Override
  public void abort() throws IOException {
    close();
  }

  @Override
  public void close() throws IOException {
    if (worker != null) {
      rows.close();
      worker.end();
      worker = null;
    }
  }
}
