package org.lakebed.spark;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.function.Consumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Rows as Arrow streams. This file and {@link ArrowSchemas} are the only ones that name Spark's internal classes
 * ArrowWriter and ArrowUtils; tried with 4.1, 4.2 and 4.3.
 */
final class ArrowRows {
  private static final String INLINE = "base64:";
  private static final int BATCH_ROWS = 8192;
  private static final long BATCH_BYTES = 8L << 20;

  private ArrowRows() {}

  private static BufferAllocator allocator(String name) {
    return ArrowUtils$.MODULE$.rootAllocator().newChildAllocator(name, 0, Long.MAX_VALUE);
  }

  /** A table of a reply, in memory. */
  record Rows(StructType schema, InternalRow[] rows) {}

  /** Read the rows of a reply. */
  static Rows take(String reply) {
    List<InternalRow> rows = new ArrayList<>();
    StructType schema = take(reply, batch -> batch.rowIterator().forEachRemaining(row -> rows.add(row.copy())));
    return new Rows(schema, rows.toArray(new InternalRow[0]));
  }

  /** Read the rows of a reply, batch by batch. They are in the reply or in a file, which is deleted. Return the columns. */
  static StructType take(String reply, Consumer<ColumnarBatch> each) {
    Path file = reply.startsWith(INLINE) ? null : Path.of(reply);
    try (InputStream in =
            file == null
                ? new ByteArrayInputStream(Base64.getDecoder().decode(reply.substring(INLINE.length())))
                : Files.newInputStream(file);
        Reader reader = new Reader(in)) {
      for (ColumnarBatch batch = reader.next(-1); batch != null; batch = reader.next(-1)) {
        each.accept(batch);
      }
      return reader.schema();
    } catch (IOException e) {
      throw Errors.mistake("A reply of lakebed's Python process cannot be read: " + e.getMessage());
    } finally {
      if (file != null) {
        file.toFile().delete();
      }
    }
  }

  /** Batches of an Arrow stream. */
  static final class Reader implements AutoCloseable {
    private final BufferAllocator allocator = allocator("lakebed-read");
    private final ArrowStreamReader stream;
    private final VectorSchemaRoot root;

    Reader(InputStream in) throws IOException {
      stream = new ArrowStreamReader(Channels.newChannel(in), allocator);
      root = stream.getVectorSchemaRoot();
    }

    StructType schema() {
      return ArrowUtils$.MODULE$.fromArrowSchema(root.getSchema());
    }

    /** The next batch, valid until the next call, with its first {@code width} columns (-1: all); null at the end. */
    ColumnarBatch next(int width) throws IOException {
      if (!stream.loadNextBatch()) {
        return null;
      }
      List<FieldVector> vectors = root.getFieldVectors();
      ColumnVector[] columns = new ColumnVector[width < 0 ? vectors.size() : width];
      for (int i = 0; i < columns.length; i++) {
        columns[i] = new BorrowedColumn(vectors.get(i));
      }
      return new ColumnarBatch(columns, root.getRowCount());
    }

    @Override
    public void close() throws IOException {
      stream.close(false);
      allocator.close();
    }
  }

  /**
   * A column of a batch. The reader owns its vector: Spark closes the columns of a batch that it has read, and a closed
   * vector of structs has no children into which the next batch could be loaded.
   */
  private static final class BorrowedColumn extends ArrowColumnVector {
    BorrowedColumn(FieldVector vector) {
      super(vector);
    }

    @Override
    public void closeIfFreeable() {}
  }

  /** Sends rows to a process. */
  static final class Writer implements AutoCloseable {
    private final BufferAllocator allocator = allocator("lakebed-write");
    private final VectorSchemaRoot root;
    private final ArrowWriter rows;
    private final ArrowStreamWriter stream;
    private int count;

    Writer(StructType schema, OutputStream out) throws IOException {
      root = VectorSchemaRoot.create(ArrowSchemas.of(schema), allocator);
      rows = ArrowWriter$.MODULE$.create(root);
      stream = new ArrowStreamWriter(root, null, Channels.newChannel(out));
      stream.start();
    }

    void write(InternalRow row) throws IOException {
      rows.write(row);
      count++;
      if (count >= BATCH_ROWS || (count % 256 == 0 && rows.sizeInBytes() >= BATCH_BYTES)) {
        flush();
      }
    }

    private void flush() throws IOException {
      rows.finish();
      stream.writeBatch();
      rows.reset();
      count = 0;
    }

    void finish() throws IOException {
      if (count > 0) {
        flush();
      }
      stream.end();
    }

    @Override
    public void close() {
      root.close();
      allocator.close();
    }
  }
}
