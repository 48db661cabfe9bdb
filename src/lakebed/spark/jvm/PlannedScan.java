package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.function.Function;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The partitions and readers of a plan that the bridge made. */
record PlannedScan(InputPartition[] partitions, PartitionReaderFactory readers) {
  // The columns of a plan. A file has its scan; a pack for a worker has none.
  private static final int SCAN = 0;
  private static final int FOLDER = 1;
  private static final int NAME = 2;
  private static final int SIZE_BYTES = 3;
  private static final int MODIFIED_MS = 4;
  private static final int FILE_NAME = 5;
  private static final int PACK = 6;

  /**
   * Convert a plan.
   *
   * <p>{@code columns} are those of the files. {@code places} follow them: the name of each file, and the numbers of its
   * rows, or nothing; with numbers a worker reads every file. {@code filters} gives the filters of files with some columns.
   */
  static PlannedScan of(
      JsonNode plan, StructType columns, StructType places, Function<StructType, Filter[]> filters, String python,
      boolean columnar) {
    List<StructType> scans = new ArrayList<>();
    List<List<PackedFiles.File>> listed = new ArrayList<>();
    for (JsonNode scan : plan.get("scans")) {
      scans.add(columns.isEmpty() ? new StructType() : Columns.of(scan.asText()));
      listed.add(new ArrayList<>());
    }
    List<InputPartition> found = new ArrayList<>();
    String[] folder = new String[1]; // that of the row before
    ArrowRows.take(
        plan.get("units").asText(),
        batch -> {
          for (int i = 0; i < batch.numRows(); i++) {
            if (batch.column(SCAN).isNullAt(i)) {
              found.add(new ScanReaders.Merged(batch.column(PACK).getBinary(i)));
            } else {
              if (!batch.column(FOLDER).isNullAt(i)) {
                folder[0] = batch.column(FOLDER).getUTF8String(i).toString();
              }
              listed.get(batch.column(SCAN).getInt(i)).add(file(folder[0], batch, i, !places.isEmpty()));
            }
          }
        });
    PartitionReaderFactory[] readers = new PartitionReaderFactory[listed.size()];
    for (int i = 0; i < readers.length; i++) {
      readers[i] = NativeFiles.reader(scans.get(i), places, filters.apply(scans.get(i)));
      for (PackedFiles files : NativeFiles.deal(listed.get(i))) {
        found.add(new ScanReaders.Native(i, files));
      }
    }
    byte[] reader = Base64.getDecoder().decode(plan.get("reader").asText());
    int width = columns.length() + places.length();
    return new PlannedScan(
        found.toArray(new InputPartition[0]), new ScanReaders(readers, reader, python, width, columnar));
  }

  private static PackedFiles.File file(String folder, ColumnarBatch batch, int row, boolean isNamed) {
    byte[] name = batch.column(NAME).getUTF8String(row).getBytes();
    byte[] constant = null;
    if (isNamed) {
      constant = batch.column(FILE_NAME).isNullAt(row) ? name : batch.column(FILE_NAME).getUTF8String(row).getBytes();
    }
    return new PackedFiles.File(
        folder, name, batch.column(SIZE_BYTES).getLong(row), batch.column(MODIFIED_MS).getLong(row), constant);
  }
}
