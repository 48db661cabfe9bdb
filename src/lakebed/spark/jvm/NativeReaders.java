package org.lakebed.spark;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.VariantExtraction;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScan;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.immutable.Seq$;

/**
 * Spark's own readers of Parquet files with some columns.
 *
 * <p>A reader needs Hadoop's settings on every executor. Broadcasting them costs more than all the rest of a plan for a
 * small scan, so they are broadcast once for the same columns and the same settings.
 *
 * <p>Names Spark's internal classes of its Parquet source; tried with 4.1, 4.2 and 4.3.
 */
final class NativeReaders {
  private static final int KEPT_MAX = 32;
  private static final Map<Key, ParquetPartitionReaderFactory> KEPT =
      new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Key, ParquetPartitionReaderFactory> eldest) {
          return size() > KEPT_MAX;
        }
      };

  private NativeReaders() {}

  /** Everything on which a reader depends except its filters. {@code settings}: Hadoop's, with the session's. */
  private record Key(
      SparkContext context, Map<String, String> settings, StructType columns, StructType constants) {}

  /** The reader of files with these columns, by their names in the files, followed by constants of each file. */
  static PartitionReaderFactory of(SparkSession session, StructType columns, StructType constants, Filter[] filters) {
    Configuration conf = session.sessionState().newHadoopConf();
    Map<String, String> settings = new HashMap<>();
    conf.forEach(setting -> settings.put(setting.getKey(), setting.getValue()));
    settings.put(SQLConf.SESSION_LOCAL_TIMEZONE().key(), session.sessionState().conf().sessionLocalTimeZone());
    Key key = new Key(session.sparkContext(), settings, columns, constants);
    ParquetPartitionReaderFactory kept;
    synchronized (KEPT) {
      KEPT.keySet().removeIf(one -> one.context.isStopped());
      kept = KEPT.get(key);
    }
    if (kept != null) {
      return kept.copy(
          session.sessionState().conf(), kept.broadcastedConf(), kept.dataSchema(), kept.readDataSchema(),
          kept.partitionSchema(), filters, kept.aggregation(), kept.options());
    }
    ParquetPartitionReaderFactory made = made(session, conf, columns, constants, filters);
    synchronized (KEPT) {
      KEPT.put(key, made);
    }
    return made;
  }

  private static ParquetPartitionReaderFactory made(
      SparkSession session, Configuration conf, StructType columns, StructType constants, Filter[] filters) {
    // The scan is only used to make readers and does not use its index; an index would cost a tenth of a plan.
    PartitioningAwareFileIndex nothing = null;
    ParquetScan scan =
        new ParquetScan(
            session, conf, nothing, columns, columns, constants, filters, CaseInsensitiveStringMap.empty(),
            Option.empty(), Seq$.MODULE$.empty(), Seq$.MODULE$.empty(),
            new VariantExtraction[0]);
    return (ParquetPartitionReaderFactory) scan.createReaderFactory();
  }
}
