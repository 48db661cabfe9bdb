package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.package$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchPartitionException;
import org.apache.spark.sql.connector.catalog.SupportsAtomicPartitionManagement;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A version of a table, resolved when the statement was analysed. */
class LakebedTable implements SupportsRead, SupportsWrite, SupportsDeleteV2, SupportsAtomicPartitionManagement {
  final Lake lake;
  final String table;
  final JsonNode loaded;
  private final StructType schema;
  private final Use use;
  private volatile boolean isPinned;
  private Long created;

  /** How a statement uses a table. */
  enum Use {
    /** Any use without its own value. */
    ANY,

    /** The written rows replace all rows. */
    REPLACE,

    /** The target of an {@link InsertingMerge}: it is read and appended to. */
    INSERT_MISSING
  }

  LakebedTable(Lake lake, String table, JsonNode loaded, Use use) {
    this.lake = lake;
    this.table = table;
    this.loaded = loaded;
    this.use = use;
    this.schema = Columns.of(loaded.get("schema").asText());
  }

  /** The table of a reply. With a primary key single rows are changed, without one whole files. */
  static LakebedTable of(Lake lake, String table, JsonNode loaded) {
    return of(lake, table, loaded, Use.ANY);
  }

  private static LakebedTable of(Lake lake, String table, JsonNode loaded, Use use) {
    return loaded.get("primary_keys").isEmpty()
        ? new AppendLakebedTable(lake, table, loaded, use)
        : new KeyedLakebedTable(lake, table, loaded, use);
  }

  /** The same version of the table, for an {@link InsertingMerge}. */
  LakebedTable insertingMissing() {
    pin();
    return of(lake, table, loaded, Use.INSERT_MISSING);
  }

  /** Whether it is the target of an {@link InsertingMerge}. */
  boolean insertsMissing() {
    return use == Use.INSERT_MISSING;
  }

  /** Whether ordinary reads leave out the rows that no compaction has seen. */
  boolean hidesNew() {
    return loaded.get("hides_new").asBoolean();
  }

  @Override
  public String name() {
    return loaded.get("name").asText();
  }

  /**
   * Let an UPDATE, DELETE or MERGE read this version for every name of the table, because all its names share this object.
   *
   * <p>Spark would load the table again for subqueries and sources, but not for the target of the statement. The target's
   * rows would then be looked up among those of a newer version.
   */
  void pin() {
    isPinned = true;
  }

  /** Spark loads a table that has a version again before it runs a statement. This would undo an InsertingMerge. */
  @Override
  public String version() {
    return insertsMissing() || isPinned ? null : snapshotId();
  }

  String snapshotId() {
    return loaded.get("snapshot_id").isNull() ? null : loaded.get("snapshot_id").asText();
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public Transform[] partitioning() {
    return partitionKeys().stream().map(key -> Expressions.identity(Columns.quoted(key))).toArray(Transform[]::new);
  }

  List<String> partitionKeys() {
    return texts("partition_keys");
  }

  List<String> primaryKeys() {
    return texts("primary_keys");
  }

  private List<String> texts(String member) {
    List<String> found = new ArrayList<>();
    loaded.get(member).forEach(text -> found.add(text.asText()));
    return found;
  }

  /** Whether {@link LakebedScan#FILE_COLUMN} names a row's file. It does not if a column of the table has that name. */
  boolean namesFiles() {
    return primaryKeys().isEmpty() && !List.of(schema.fieldNames()).contains(LakebedScan.FILE_COLUMN);
  }

  /** Whether deletion vectors delete single rows, so that {@link LakebedScan#POSITION_COLUMN} numbers them. */
  boolean marksRows() {
    return loaded.get("marks").asBoolean() && namesFiles()
        && !List.of(schema.fieldNames()).contains(LakebedScan.POSITION_COLUMN);
  }

  /** The schema that a commit gives the table; null: its present one. */
  String staged() {
    return loaded.path("staged").isTextual() ? loaded.get("staged").asText() : null;
  }

  /** The branch that is read and written; null: main. */
  String branch() {
    return loaded.get("branch").isNull() ? null : loaded.get("branch").asText();
  }

  /** The schema to which names of columns refer. A request with it is refused if another table has the name. */
  JsonNode resolved() {
    return loaded.get("resolved");
  }

  /** When the table was created, Unix ms, as read by a stream that began to write into it. */
  synchronized long created() {
    if (created == null) {
      created = lake.ask("stream_sink", "table", table, "branch", branch()).get("created_ms").asLong();
    }
    return created;
  }

  String snapshot() {
    return loaded.get("snapshot").isNull() ? null : loaded.get("snapshot").asText();
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> found = new HashMap<>();
    loaded.get("properties").properties().forEach(entry -> found.put(entry.getKey(), entry.getValue().asText()));
    // DESCRIBE EXTENDED shows the folder. SHOW CREATE TABLE leaves it out if Spark considers it managed.
    found.put(TableCatalog.PROP_LOCATION, loaded.get("url").asText());
    found.put(TableCatalog.PROP_IS_MANAGED_LOCATION, "true");
    if (lake.provider != null) {
      found.put(TableCatalog.PROP_PROVIDER, lake.provider);
    }
    return found;
  }

  /** A new table with the key, the options and the comment of this one, overridden by its own statement. */
  TableInfo copied(TableInfo info) {
    Map<String, String> properties = properties();
    properties.remove(TableCatalog.PROP_LOCATION);
    properties.remove(TableCatalog.PROP_IS_MANAGED_LOCATION);
    properties.remove(TableCatalog.PROP_PROVIDER);
    properties.putAll(info.properties());
    return new TableInfo.Builder()
        .withColumns(info.columns())
        .withPartitions(info.partitions())
        .withProperties(properties)
        .build();
  }

  @Override
  public Set<TableCapability> capabilities() {
    if (loaded.get("travels").asBoolean()) {
      return EnumSet.of(TableCapability.BATCH_READ);
    }
    return EnumSet.of(
        TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_WRITE,
        TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE, TableCapability.OVERWRITE_BY_FILTER,
        TableCapability.OVERWRITE_DYNAMIC, TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    checkBranch(options);
    boolean seesAll = insertsMissing() && !primaryKeys().isEmpty();
    return new LakebedScan.Builder(this, seesAll, options);
  }

  /** Refuse the option for a branch where it has no effect: another branch would be read or written instead. */
  static void checkBranch(CaseInsensitiveStringMap options) {
    if (!MinorCatalog.LOADS_WITH_OPTIONS && options.containsKey(LakebedCatalog.BRANCH_OPTION)) {
      throw Errors.mistake(
          "The option " + LakebedCatalog.BRANCH_OPTION + " needs Spark 4.3, and this is " + package$.MODULE$.SPARK_VERSION()
              + ": let the table's name end with $branch_" + options.get(LakebedCatalog.BRANCH_OPTION) + ".");
    }
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    checkBranch(info.options());
    boolean replaces = use == Use.REPLACE;
    return primaryKeys().isEmpty()
        ? new LakebedWrite.Builder(this, replaces, info)
        : new KeyedWriteBuilder(this, replaces, info);
  }

  /**
   * DELETE without a job. In an append table the bridge rewrites the files with affected rows, if they are small. In a
   * table with a primary key it can only replace all rows by none.
   */
  @Override
  public boolean canDeleteWhere(Predicate[] predicates) {
    if (!primaryKeys().isEmpty()) {
      return Arrays.stream(predicates).allMatch(AlwaysTrue.class::isInstance);
    }
    return lake.ask(
            "can_delete", "table", table, "branch", branch(), "resolved", resolved(), "predicates",
            Predicates.encoded(predicates)).get("alone").asBoolean();
  }

  @Override
  public void deleteWhere(Predicate[] predicates) {
    if (!primaryKeys().isEmpty()) {
      truncateTable();
      return;
    }
    lake.change(
        "delete", "table", table, "branch", branch(), "resolved", resolved(), "predicates", Predicates.encoded(predicates));
  }

  @Override
  public boolean truncateTable() {
    LakebedWrite.truncate(this);
    return true;
  }

  // ---- partitions, which exist as long as they have rows

  @Override
  public StructType partitionSchema() {
    return new Partitions(this).schema();
  }

  @Override
  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow partition) {
    return new Partitions(this).list(names, partition);
  }

  @Override
  public boolean partitionExists(InternalRow partition) {
    return new Partitions(this).exists(partition);
  }

  @Override
  public Map<String, String> loadPartitionMetadata(InternalRow partition) {
    return new Partitions(this).counts(partition);
  }

  @Override
  public boolean dropPartitions(InternalRow[] partitions) {
    new Partitions(this).drop(partitions);
    return true;
  }

  /** The rows of versions that snapshots, tags and branches keep are not deleted. */
  @Override
  public boolean purgePartitions(InternalRow[] partitions) {
    throw Errors.mistake(
        "The partitions of " + name() + " cannot be dropped with PURGE, since older versions keep their files: leave out PURGE,"
            + " and CALL sys.expire_snapshots where no version should keep them.");
  }

  @Override
  public boolean purgePartition(InternalRow partition) {
    return purgePartitions(new InternalRow[] {partition});
  }

  @Override
  public boolean truncatePartition(InternalRow partition) throws NoSuchPartitionException {
    if (!partitionExists(partition)) {
      throw new NoSuchPartitionException(name(), partition, partitionSchema());
    }
    return dropPartitions(new InternalRow[] {partition});
  }

  @Override
  public boolean truncatePartitions(InternalRow[] partitions) {
    return partitions.length > 0 && dropPartitions(partitions);
  }

  @Override
  public void createPartitions(InternalRow[] partitions, Map<String, String>[] properties) {
    throw Errors.mistake(
        "No partition can be added to " + name() + ", since a partition is there as long as it has rows: INSERT rows with its"
            + " values.");
  }

  @Override
  public boolean renamePartition(InternalRow from, InternalRow to) {
    throw Errors.mistake(
        "A partition of " + name() + " cannot be renamed, since its values are those of its rows: UPDATE the rows, or INSERT"
            + " them with other values and drop the partition.");
  }

  @Override
  public void replacePartitionMetadata(InternalRow partition, Map<String, String> properties) {
    throw Errors.mistake("The partitions of " + name() + " have no properties: set them on the table.");
  }
}
