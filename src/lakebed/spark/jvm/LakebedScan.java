package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A read of one version. Its files are requested when the first task is needed. */
final class LakebedScan implements Scan, Batch, SupportsReportStatistics, SupportsRuntimeV2Filtering {
  /** The metadata column with the name of a row's file; tables without a primary key have it. */
  static final String FILE_COLUMN = "_file";

  /** The metadata column with the number of a row in its file. Such tables with deletion vectors have it, too. */
  static final String POSITION_COLUMN = "_pos";

  private final LakebedTable table;
  private final StructType columns;
  private final boolean namesFiles;
  private final boolean numbersRows;
  private final boolean rewrites;
  private final List<Predicate> predicates;
  private final Integer limit;
  private final CaseInsensitiveStringMap options;
  private final boolean columnar;
  private final NativeFiles.Session session = NativeFiles.Session.active();
  private List<String> files;
  private InputPartition[] partitions;
  private PartitionReaderFactory factory;

  private LakebedScan(Builder builder) {
    table = builder.table;
    rewrites = builder.rewrites;
    List<String> wanted = List.of(builder.columns.fieldNames());
    numbersRows = table.marksRows() && wanted.contains(POSITION_COLUMN);
    namesFiles = numbersRows || (table.namesFiles() && wanted.contains(FILE_COLUMN));
    StructType named = namesFiles ? without(builder.columns, FILE_COLUMN) : builder.columns;
    columns = numbersRows ? without(named, POSITION_COLUMN) : named;
    predicates = List.of(builder.predicates);
    limit = builder.limit;
    options = builder.options;
    columnar = NativeFiles.isColumnar(columns);
  }

  /**
   * The required columns, each with all its fields. Spark asks only for those fields of structs that a query names, and
   * accepts whole columns, too. Files and workers have whole columns, whose fields would be mistaken for others.
   */
  static StructType whole(StructType required, StructType schema) {
    return new StructType(
        Arrays.stream(required.fields())
            .map(field -> schema.getFieldIndex(field.name()).isDefined() ? schema.apply(field.name()) : field)
            .toArray(StructField[]::new));
  }

  private static StructType without(StructType columns, String name) {
    return new StructType(
        Arrays.stream(columns.fields()).filter(field -> !field.name().equals(name)).toArray(StructField[]::new));
  }

  /** The columns that no file has, if they are wanted: the name of each row's file, and the number of the row in it. */
  private StructType places() {
    StructType file = namesFiles ? new StructType().add(FILE_COLUMN, DataTypes.StringType, false) : new StructType();
    return numbersRows ? file.add(POSITION_COLUMN, DataTypes.LongType, false) : file;
  }

  @Override
  public StructType readSchema() {
    StructType all = columns;
    for (StructField place : places().fields()) {
      all = all.add(place);
    }
    return all;
  }

  // ---- files that are rewritten

  /** Spark's query for the files with the rows of a DELETE, UPDATE or MERGE restricts a scan by their names. */
  @Override
  public NamedReference[] filterAttributes() {
    return rewrites && namesFiles
        ? new NamedReference[] {Expressions.column(FILE_COLUMN)}
        : new NamedReference[0];
  }

  @Override
  public synchronized void filter(Predicate[] found) {
    for (Predicate predicate : found) {
      List<String> names = Predicates.texts(predicate, FILE_COLUMN);
      if (names != null) {
        files = names;
        partitions = null; // those of the plan of all files, which Spark may already have asked for
      }
    }
  }

  /** The files that this scan reads, in the form of messages. */
  synchronized Object rewritten() {
    Map<String, Object> members = new LinkedHashMap<>();
    members.put("snapshot", table.snapshot());
    members.put("schema_id", table.loaded.get("schema_id").asInt());
    members.put("predicates", Predicates.encoded(predicates.toArray(new Predicate[0])));
    members.put("files", files);
    return members;
  }

  @Override
  public String description() {
    return "lakebed " + table.name() + " (snapshot " + table.snapshotId() + ") predicates " + predicates
        + (limit == null ? "" : " limit " + limit);
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return columnar ? ColumnarSupportMode.SUPPORTED : ColumnarSupportMode.UNSUPPORTED;
  }

  @Override
  public Statistics estimateStatistics() {
    long rows = table.loaded.get("row_count").asLong();
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return OptionalLong.of(Math.max(1, rows * columns.defaultSize()));
      }

      @Override
      public OptionalLong numRows() {
        return OptionalLong.of(rows);
      }
    };
  }

  @Override
  public Batch toBatch() {
    Options.check("a batch of " + table.name(), options, Options.READ);
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    if (namesFiles) {
      throw Errors.mistake("A stream has no column " + FILE_COLUMN + ": leave it out.");
    }
    int schemaId = table.loaded.get("schema_id").asInt();
    return new LakebedStream(
        new LakebedStream.Followed(table.lake, table.table, table.branch(), schemaId, Map.of()), columns, options);
  }

  @Override
  public InputPartition[] planInputPartitions() {
    plan();
    return partitions;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    plan();
    return factory;
  }

  private synchronized void plan() {
    if (partitions != null) {
      return;
    }
    PlannedScan planned = session.within(this::planned); // another session may be active when Spark asks
    factory = planned.readers();
    partitions = planned.partitions();
  }

  private PlannedScan planned() {
    JsonNode plan =
        table.lake.ask(
            "plan", "table", table.table, "branch", table.branch(), "resolved", table.resolved(), "snapshot",
            table.snapshot(), "schema_id",
            table.loaded.get("schema_id").asInt(), "columns", Arrays.asList(columns.fieldNames()), "schemes",
            NativeFiles.schemes(), "predicates", Predicates.encoded(predicates.toArray(new Predicate[0])), "limit", limit,
            "task_count_min", NativeFiles.parallelism(), "names_files", namesFiles, "numbers_rows", numbersRows,
            "rewrites", rewrites, "files", files);
    return PlannedScan.of(plan, columns, places(), this::filters, table.lake.python, columnar);
  }

  /** Predicates name columns as the table does. Files that name them otherwise, or are rewritten, get no filters. */
  private Filter[] filters(StructType stored) {
    return (!rewrites || !table.primaryKeys().isEmpty()) && Arrays.equals(stored.fieldNames(), columns.fieldNames())
        ? NativeFiles.filters(predicates.toArray(new Predicate[0]))
        : new Filter[0];
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof LakebedScan scan
        && scan.table.lake.url.equals(table.lake.url)
        && scan.table.table.equals(table.table)
        && scan.table.loaded.equals(table.loaded)
        && scan.columns.equals(columns)
        && scan.namesFiles == namesFiles
        && scan.numbersRows == numbersRows
        && scan.rewrites == rewrites
        && Objects.equals(scan.files, files)
        && scan.predicates.equals(predicates)
        && Objects.equals(scan.limit, limit);
  }

  @Override
  public int hashCode() {
    return Objects.hash(table.table, table.snapshotId(), columns, predicates, limit);
  }

  /** What Spark pushes into a scan. */
  static class Builder
      implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters, SupportsPushDownLimit,
          SupportsPushDownAggregates {
    private final LakebedTable table;
    private final boolean rewrites;
    private StructType columns;
    private Predicate[] predicates = new Predicate[0];
    private final CaseInsensitiveStringMap options;
    private Integer limit;
    private RowsTable counted;

    /** {@code rewrites}: a statement that changes rows reads; see the verb {@code plan} of the bridge. */
    Builder(LakebedTable table, boolean rewrites, CaseInsensitiveStringMap options) {
      this.options = options;
      this.table = table;
      this.rewrites = rewrites;
      this.columns = table.schema();
    }

    @Override
    public void pruneColumns(StructType required) {
      columns = whole(required, table.schema());
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] pushed) {
      predicates = pushed;
      return pushed; // Spark evaluates them on the rows, too: they only exclude files and row groups
    }

    @Override
    public Predicate[] pushedPredicates() {
      return predicates;
    }

    @Override
    public boolean pushLimit(int rows) {
      if (predicates.length > 0) {
        return false;
      }
      limit = rows;
      return true;
    }

    @Override
    public boolean isPartiallyPushed() {
      return true;
    }

    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
      return pushAggregation(aggregation);
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
      AggregateFunc[] functions = aggregation.aggregateExpressions();
      if (counted != null || rewrites || predicates.length > 0 || aggregation.groupByExpressions().length > 0
          || functions.length == 0) {
        return counted != null;
      }
      Options.check("a batch of " + table.name(), options, Options.READ);
      List<Map<String, String>> asked = new ArrayList<>();
      StructType schema = new StructType();
      for (AggregateFunc function : functions) {
        Map<String, String> members = Predicates.aggregate(function);
        if (members == null) {
          return false;
        }
        asked.add(members);
        boolean counts = members.get("function").startsWith("count");
        if (!counts && !table.schema().getFieldIndex(members.get("column")).isDefined()) {
          return false;
        }
        DataType type = counts ? DataTypes.LongType : table.schema().apply(members.get("column")).dataType();
        schema = schema.add(function.describe() + " " + asked.size(), type, !counts);
      }
      JsonNode values =
          table.lake.ask(
              "aggregate", "table", table.table, "branch", table.branch(), "resolved", table.resolved(), "snapshot",
              table.snapshot(), "schema_id", table.loaded.get("schema_id").asInt(), "functions", asked).get("values");
      if (values.isNull()) {
        return false;
      }
      Object[] row = new Object[functions.length];
      for (int i = 0; i < row.length; i++) {
        row[i] = Predicates.internal(values.get(i).get(0), schema.fields()[i].dataType());
      }
      counted = new RowsTable(table.name(), new ArrowRows.Rows(schema, new InternalRow[] {new GenericInternalRow(row)}));
      return true;
    }

    @Override
    public Scan build() {
      return counted != null ? counted : new LakebedScan(this);
    }
  }
}
