package org.lakebed.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.format.Util;
import org.apache.parquet.format.converter.ParquetMetadataConverter;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.hadoop.metadata.FileMetaData;
import org.apache.parquet.hadoop.metadata.ParquetMetadata;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.PositionOutputStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.parquet.ParquetWriteSupport;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;

/**
 * One data file, encoded by Spark's own Parquet writer.
 *
 * <p>This is the only file that names Spark's internal classes ParquetWriteSupport and SQLConf; tried with 4.1, 4.2 and
 * 4.3.
 */
final class ParquetFile {
  private static final int FORMAT_VERSION = 1;

  private final TaskFiles.Output out;
  private final ParquetWriter<InternalRow> writer;

  ParquetFile(TaskFiles.Output out, FileTarget target, long rowGroupBytes) throws IOException {
    this.out = out;
    Builder builder =
        new Builder(new Opened(out))
            .withConf(configuration(target))
            .withCompressionCodec(CompressionCodecName.valueOf(target.codec))
            .withRowGroupSize(rowGroupBytes);
    for (String column : target.withoutDictionary) {
      builder = builder.withDictionaryEncoding(column, false);
    }
    Builder ready = builder;
    writer = SQLConf$.MODULE$.withExistingConf(ownConf(), () -> ready.opened());
  }

  /** Settings without the session's, so that its setting for dates before 1582 does not affect the files of a table. */
  private static SQLConf ownConf() {
    SQLConf conf = new SQLConf();
    conf.setConfString("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED");
    conf.setConfString("spark.sql.parquet.int96RebaseModeInWrite", "CORRECTED");
    return conf;
  }

  private static Configuration configuration(FileTarget target) {
    Configuration conf = new Configuration(false);
    ParquetWriteSupport.setSchema(target.schema, conf);
    SQLConf$ sql = SQLConf$.MODULE$;
    conf.set(sql.PARQUET_WRITE_LEGACY_FORMAT().key(), "false");
    conf.set(sql.PARQUET_OUTPUT_TIMESTAMP_TYPE().key(), "TIMESTAMP_MICROS");
    conf.set(sql.PARQUET_FIELD_ID_WRITE_ENABLED().key(), "true");
    conf.set(sql.PARQUET_ANNOTATE_VARIANT_LOGICAL_TYPE().key(), "false");
    conf.set("parquet.compression.codec.zstd.level", Integer.toString(target.level));
    return conf;
  }

  void write(InternalRow row) throws IOException {
    writer.write(row);
  }

  /** The bytes written so far, and those of the rows in memory. */
  long bytes() {
    return writer.getDataSize();
  }

  /** Finish the file and return its footer, without the texts that Spark adds for itself. */
  byte[] close() throws IOException {
    writer.close();
    ParquetMetadata written = writer.getFooter();
    FileMetaData file = written.getFileMetaData();
    ParquetMetadata bare =
        new ParquetMetadata(new FileMetaData(file.getSchema(), Map.of(), file.getCreatedBy()), written.getBlocks());
    ByteArrayOutputStream footer = new ByteArrayOutputStream();
    Util.writeFileMetaData(new ParquetMetadataConverter().toParquetMetadata(FORMAT_VERSION, bare), footer);
    return footer.toByteArray();
  }

  /** Free what the writer holds; the file will be deleted. */
  void drop() {
    out.drop();
    try (out) {
      writer.close();
    } catch (IOException | RuntimeException e) {
      // It may be the reason why the file is dropped.
    }
  }

  private static final class Builder extends ParquetWriter.Builder<InternalRow, Builder> {
    Builder(OutputFile file) {
      super(file);
    }

    ParquetWriter<InternalRow> opened() {
      try {
        return build();
      } catch (IOException e) {
        throw new java.io.UncheckedIOException(e);
      }
    }

    @Override
    protected Builder self() {
      return this;
    }

    @Override
    protected WriteSupport<InternalRow> getWriteSupport(Configuration conf) {
      return new WithPartIds();
    }
  }

  private static final class WithPartIds extends ParquetWriteSupport {
    @Override
    public WriteContext init(Configuration conf) {
      WriteContext context = super.init(conf);
      return new WriteContext(PartIds.add(context.getSchema()), context.getExtraMetaData());
    }
  }

  /** A file that is already open. */
  private record Opened(TaskFiles.Output out) implements OutputFile {
    @Override
    public PositionOutputStream create(long blockBytes) {
      return out;
    }

    @Override
    public PositionOutputStream createOrOverwrite(long blockBytes) {
      return out;
    }

    @Override
    public boolean supportsBlockSize() {
      return false;
    }

    @Override
    public long defaultBlockSize() {
      return 0;
    }
  }
}
