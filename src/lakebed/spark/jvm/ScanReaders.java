package org.lakebed.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Readers of a scan's partitions: Spark's own for unchanged files, a worker for splits that need a merge. */
final class ScanReaders implements PartitionReaderFactory {
  private final PartitionReaderFactory[] groups;
  private final byte[] reader;
  private final String python;
  private final int width;
  private final boolean columnar;

  ScanReaders(PartitionReaderFactory[] groups, byte[] reader, String python, int width, boolean columnar) {
    this.groups = groups;
    this.reader = reader;
    this.python = python;
    this.width = width;
    this.columnar = columnar;
  }

  /** Files of one group. */
  record Native(int group, PackedFiles files) implements InputPartition {}

  /** Splits for a worker, pickled. */
  record Merged(byte[] splits) implements InputPartition {
    @Override
    public String toString() {
      return "Merged(" + splits.length + " bytes)";
    }
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return columnar;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    if (partition instanceof Native files) {
      return groups[files.group()].createReader(NativeFiles.partition(files.files()));
    }
    return new MergedRows(merged(partition));
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    if (partition instanceof Native files) {
      return groups[files.group()].createColumnarReader(NativeFiles.partition(files.files()));
    }
    return merged(partition);
  }

  private MergedBatches merged(InputPartition partition) {
    return new MergedBatches(Python.orDefault(python), reader, ((Merged) partition).splits(), width);
  }

  /** Batches from a worker. */
  private static final class MergedBatches implements PartitionReader<ColumnarBatch> {
    private final Worker worker;
    private final ArrowRows.Reader batches;
    private final int width;
    private ColumnarBatch current;
    private boolean finished;

    MergedBatches(String python, byte[] reader, byte[] splits, int width) {
      this.width = width;
      worker = Worker.acquire(python);
      try {
        worker.out.writeByte('R');
        worker.send(reader);
        worker.send(splits);
        worker.out.flush();
        worker.expectDone();
        batches = new ArrowRows.Reader(worker.in);
      } catch (IOException e) {
        worker.end();
        throw new UncheckedIOException(e);
      }
    }

    @Override
    public boolean next() throws IOException {
      if (finished) {
        return false;
      }
      current = batches.next(width);
      if (current == null) {
        worker.expectDone(); // otherwise a stream that was cut off looks like one that ended
        finished = true;
      }
      return !finished;
    }

    @Override
    public ColumnarBatch get() {
      return current;
    }

    @Override
    public void close() throws IOException {
      batches.close();
      if (finished) {
        worker.release();
      } else {
        worker.end();
      }
    }
  }

  /** The same rows, one by one. */
  private static final class MergedRows implements PartitionReader<InternalRow> {
    private final MergedBatches batches;
    private Iterator<InternalRow> rows;
    private InternalRow current;

    MergedRows(MergedBatches batches) {
      this.batches = batches;
    }

    @Override
    public boolean next() throws IOException {
      while (rows == null || !rows.hasNext()) {
        if (!batches.next()) {
          return false;
        }
        rows = batches.get().rowIterator();
      }
      current = rows.next();
      return true;
    }

    @Override
    public InternalRow get() {
      return current;
    }

    @Override
    public void close() throws IOException {
      batches.close();
    }
  }
}
