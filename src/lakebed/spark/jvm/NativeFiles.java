package org.lakebed.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.filter.And;
import org.apache.spark.sql.connector.expressions.filter.Not;
import org.apache.spark.sql.connector.expressions.filter.Or;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.parquet.ParquetUtils$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.connector.PredicateUtils$;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import scala.Option;
import scala.collection.immutable.Map$;

/**
 * Spark's own Parquet reader for exactly the files of a plan: nothing is listed, and no file status is requested.
 *
 * <p>This file and {@link NativeReaders} are the only ones that name Spark's internal classes of its file sources; tried
 * with 4.1, 4.2 and 4.3.
 */
final class NativeFiles {
  /** 3 January 1900 as days since 1970. */
  private static final long FIRST_KEPT_DAY = -25_565;

  private NativeFiles() {}

  private static SparkSession session() {
    return SparkSession.active();
  }

  /** The session with whose settings a scan was made. */
  record Session(SparkSession spark) {
    static Session active() {
      return new Session(session());
    }

    <T> T within(Supplier<T> run) {
      return spark.withActive(run::get);
    }
  }

  static Configuration configuration() {
    return session().sessionState().newHadoopConf();
  }

  /** The number of parts of a shuffle for an expression. */
  static int shufflePartitions() {
    return session().sessionState().conf().numShufflePartitions();
  }

  /** The schemes of Hadoop's available file systems, of those that a lake may be in. */
  static List<String> schemes() {
    Configuration conf = configuration();
    List<String> found = new ArrayList<>();
    for (String scheme : List.of("file", "s3a", "gs")) {
      try {
        FileSystem.getFileSystemClass(scheme, conf);
        found.add(scheme);
      } catch (IOException | RuntimeException e) {
        // Not on the class path: lakebed reads the files of this scheme.
      }
    }
    return found;
  }

  /** Whether the reader returns columns as batches. */
  static boolean isColumnar(StructType schema) {
    return ParquetUtils$.MODULE$.isBatchReadSupportedForSchema(session().sessionState().conf(), schema);
  }

  static int parallelism() {
    return session().sparkContext().defaultParallelism();
  }

  /** Filters by which Spark's reader can exclude row groups: each is true wherever its predicate is. */
  static Filter[] filters(Predicate[] predicates) {
    List<Filter> found = new ArrayList<>();
    for (Predicate predicate : predicates) {
      Filter filter = weaker(predicate);
      if (filter != null) {
        found.add(filter);
      }
    }
    return found.toArray(new Filter[0]);
  }

  /**
   * A filter that is true wherever a predicate is; null: there is none. Spark's own translation leaves out parts that it
   * does not know, also of an OR and under NOT, so its filter would lose rows.
   */
  private static Filter weaker(Predicate predicate) {
    if (predicate instanceof And || predicate instanceof Or) {
      Filter left = weaker((Predicate) predicate.children()[0]);
      Filter right = weaker((Predicate) predicate.children()[1]);
      if (left != null && right != null) {
        boolean isAnd = predicate instanceof And;
        return isAnd ? new org.apache.spark.sql.sources.And(left, right) : new org.apache.spark.sql.sources.Or(left, right);
      }
      return predicate instanceof Or ? null : left != null ? left : right;
    }
    Option<Filter> filter = isKnown(predicate) ? PredicateUtils$.MODULE$.toV1(predicate) : Option.empty();
    return filter.isDefined() ? filter.get() : null;
  }

  /** Whether Spark's translation leaves out no part of a predicate, and changes no value. */
  private static boolean isKnown(Predicate predicate) {
    if (predicate instanceof And || predicate instanceof Or || predicate instanceof Not) {
      return Arrays.stream(predicate.children()).allMatch(part -> isKnown((Predicate) part));
    }
    return Arrays.stream(predicate.children()).allMatch(part -> !(part instanceof Literal<?> literal) || isKept(literal))
        && PredicateUtils$.MODULE$.toV1(predicate).isDefined();
  }

  /**
   * Whether Spark's translation keeps a value. It converts dates and times to the calendar of java.sql, which lacks the
   * days from 5 to 14 October 1582, and has other offsets of time zones before 1900.
   */
  private static boolean isKept(Literal<?> literal) {
    if (literal.value() instanceof Number number && literal.dataType() instanceof DateType) {
      return number.longValue() >= FIRST_KEPT_DAY;
    }
    if (literal.value() instanceof Number number && literal.dataType() instanceof TimestampType) {
      return number.longValue() >= FIRST_KEPT_DAY * 86_400_000_000L;
    }
    return Predicates.isText(literal.value());
  }

  /** The reader of files with these columns, by their names in the files, followed by constants of each file. */
  static PartitionReaderFactory reader(StructType columns, StructType constants, Filter[] filters) {
    return NativeReaders.of(session(), columns, constants, filters);
  }

  /** Parsing a URL takes microseconds, and a plan has many URLs. One without special characters needs no parsing. */
  private static SparkPath path(String url) {
    for (int i = 0; i < url.length(); i++) {
      char c = url.charAt(i);
      boolean plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '-' && c <= ':' || c == '_' || c == '=';
      if (!plain) {
        return SparkPath.fromPath(new Path(url));
      }
    }
    return SparkPath.fromUrlString(url);
  }

  /** The files of a task in the form for Spark's reader. */
  static InputPartition partition(PackedFiles files) {
    PartitionedFile[] parts = new PartitionedFile[files.count()];
    for (int i = 0; i < parts.length; i++) {
      parts[i] =
          new PartitionedFile(
              files.constants(i), path(files.url(i)), files.start(i), files.length(i), new String[0],
              files.modifiedMs(i), files.sizeBytes(i), Map$.MODULE$.empty());
    }
    return new FilePartition(0, parts);
  }

  /** Distribute files over tasks, as Spark does for its own tables. */
  static List<PackedFiles> deal(List<PackedFiles.File> files) {
    SparkSession session = session();
    SQLConf conf = session.sessionState().conf();
    long openBytes = conf.filesOpenCostInBytes();
    long total = 0;
    for (PackedFiles.File file : files) {
      total += file.sizeBytes() + openBytes;
    }
    Object all = total;
    long splitBytes = FilePartition.maxSplitBytes(session, () -> all);
    Option<Object> most = conf.filesMaxPartitionNum();
    Integer taskCountMax = most.isDefined() ? (Integer) most.get() : null;
    return PackedFiles.deal(files, new PackedFiles.Sizes(splitBytes, openBytes, taskCountMax));
  }
}
