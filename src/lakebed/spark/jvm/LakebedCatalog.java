package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.BucketTransform;
import org.apache.spark.sql.connector.expressions.IdentityTransform;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A lake as a catalog of Spark SQL: {@code spark.sql.catalog.NAME=org.lakebed.spark.LakebedCatalog}.
 *
 * <p>Its settings are {@code spark.sql.catalog.NAME.url}, {@code .python}, {@code .timeout} (seconds) and {@code .provider}
 * (what USING may name besides lakebed's own words, and what tables show, for tools that ask for a format by name). It
 * decides nothing: it sends requests to the bridge, and converts the replies.
 */
public final class LakebedCatalog
    implements MinorCatalog, StagingTableCatalog, SupportsNamespaces, ProcedureCatalog, FunctionCatalog {
  static final String DEFAULT_DATABASE = "default";
  private static final String PROCEDURES = "sys";
  static final String BRANCH_OPTION = "branch";
  static final String BRANCH_PREFIX = "branch_";

  private String name;
  private Lake lake;
  private final Set<String> created = ConcurrentHashMap.newKeySet();

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    JarClasses.load();
    this.name = name;
    String url = options.get("url");
    if (url == null || url.isBlank()) {
      throw Errors.mistake(
          "The catalog " + name + " has no lake: set spark.sql.catalog." + name + ".url to a folder or a bucket's URL.");
    }
    long seconds = seconds(options.getOrDefault("timeout", "600"));
    lake = new Lake(url, options.get("python"), options.get("provider"), seconds);
  }

  private long seconds(String timeout) {
    if (!timeout.matches("[1-9][0-9]{0,8}")) {
      throw Errors.mistake(
          "The setting spark.sql.catalog." + name + ".timeout is '" + timeout + "': set it to a whole number of seconds.");
    }
    return Long.parseLong(timeout);
  }

  @Override
  public String name() {
    return name;
  }

  /** The lake that the catalog shows. */
  public Lake lake() {
    return lake;
  }

  /** PRIMARY KEY is treated as the property of that name; other constraints are refused with a sentence. */
  @Override
  public Set<TableCatalogCapability> capabilities() {
    return Set.of(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
  }

  @Override
  public String[] defaultNamespace() {
    return new String[] {DEFAULT_DATABASE};
  }

  // ---- loading

  @Override
  public Table loadTable(Identifier table) throws NoSuchTableException {
    return load(table, null, null, null);
  }

  @Override
  public Table loadTable(Identifier table, String version) throws NoSuchTableException {
    return load(table, version, null, null);
  }

  @Override
  public Table loadTable(Identifier table, long micros) throws NoSuchTableException {
    return load(table, null, micros, null);
  }

  /** Load a table, a version of it, or a system table. At most one of version and time is given. */
  public Table load(Identifier table, String version, Long micros, String branch) throws NoSuchTableException {
    String[] parts = table.name().split("\\$", 2);
    String system = null;
    String named = names(table.namespace(), parts[0]);
    Boolean dotted = null;
    if (parts.length == 2 && parts[1].startsWith(BRANCH_PREFIX)) {
      String[] of = parts[1].substring(BRANCH_PREFIX.length()).split("\\$", 2);
      branch = of[0];
      system = of.length == 2 ? of[1] : null;
    } else if (parts.length == 2) {
      system = parts[1];
    } else if (table.namespace().length == 2) {
      dotted = true;
      named = names(new String[] {table.namespace()[0]}, table.namespace()[1]);
      system = table.name();
    }
    if (named == null) {
      throw new NoSuchTableException(table);
    }
    try {
      JsonNode found =
          lake.find(
              "load", "table", named, "branch", branch, "version", version, "timestamp_us", micros, "system", system,
              "is_dotted", dotted);
      CachedTables.remember(named, name, table);
      if (system == null) {
        return LakebedTable.of(lake, named, found);
      }
      return found.has("rows")
          ? new RowsTable(name + "." + named + "." + system, ArrowRows.take(found.get("rows").asText()))
          : new AuditTable(lake, named, found);
    } catch (Errors.Refused e) {
      throw new NoSuchTableException(table);
    }
  }

  /** A table's name in Python's spelling; null: it is not valid. */
  private static String names(String[] namespace, String table) {
    return switch (namespace.length) {
      case 0 -> DEFAULT_DATABASE + "." + table;
      case 1 -> namespace[0] + "." + table;
      default -> null;
    };
  }

  /** A table's name in Python's spelling. */
  public String named(Identifier table) {
    String found = names(table.namespace(), table.name());
    if (found == null) {
      throw Errors.mistake(
          "A table of the catalog " + name + " is named " + name + ".database.table, and not " + name + "." + table + ".");
    }
    return found;
  }

  // ---- creating and changing

  @Override
  public Table createTable(Identifier table, TableInfo info) throws TableAlreadyExistsException {
    create(table, info);
    try {
      return loadTable(table);
    } catch (NoSuchTableException e) {
      throw Errors.mistake("The table " + table + " was dropped while it was created.");
    }
  }

  private void create(Identifier table, TableInfo info) throws TableAlreadyExistsException {
    try {
      lake.changeTable(
          "create_table", "table", named(table), "schema", info.schema().json(), "partition_keys",
          partitionKeys(info.partitions()), "properties", properties(info));
    } catch (Errors.Refused e) {
      throw new TableAlreadyExistsException(quoted(table));
    }
  }

  private static String quoted(Identifier table) {
    return String.join(".", table.namespace()) + "." + table.name();
  }

  private static List<String> partitionKeys(Transform[] transforms) {
    List<String> keys = new ArrayList<>();
    for (Transform transform : transforms) {
      if (transform instanceof IdentityTransform && transform.references()[0].fieldNames().length == 1) {
        keys.add(transform.references()[0].fieldNames()[0]);
      } else if (!(transform instanceof BucketTransform)) {
        throw Errors.mistake(
            "PARTITIONED BY " + transform.describe() + " is not possible: a table is partitioned by the values of columns"
                + " and by bucket(n, column). Add a column with the value of " + transform.describe()
                + " and partition by it.");
      }
    }
    return keys;
  }

  /** The properties of a new table, including the buckets of its transforms and the key of its constraint. */
  private Map<String, String> properties(TableInfo info) {
    for (StructField column : info.schema().fields()) {
      Columns.checkType(column.name(), column.dataType());
    }
    Map<String, String> properties = new LinkedHashMap<>(info.properties());
    properties.computeIfPresent(
        TableCatalog.PROP_PROVIDER, (name, provider) -> provider.equalsIgnoreCase(lake.provider) ? null : provider);
    for (Transform transform : info.partitions()) {
      if (transform instanceof BucketTransform bucket) {
        String columns = String.join(",", Arrays.stream(bucket.references()).map(LakebedCatalog::column).toList());
        String clause = "PARTITIONED BY " + transform.describe();
        set(properties, "bucket", bucket.numBuckets().value().toString(), clause);
        set(properties, "bucket-key", columns, clause);
      }
    }
    for (Constraint constraint : info.constraints()) {
      if (!(constraint instanceof PrimaryKey key)) {
        throw Errors.mistake(
            "A table of a lake has no constraint but PRIMARY KEY: leave out " + written(constraint) + ".");
      }
      String columns = String.join(",", Arrays.stream(key.columns()).map(LakebedCatalog::column).toList());
      set(properties, "primary-key", columns, written(key));
    }
    properties.computeIfPresent("primary-key", (name, keys) -> named(keys, info.schema()));
    return properties;
  }

  /** Names of columns, separated by commas, in the case of the columns. Spark itself does so for partitions. */
  private static String named(String columns, StructType schema) {
    if (Boolean.parseBoolean(SparkSession.active().conf().get("spark.sql.caseSensitive"))) {
      return columns;
    }
    Map<String, String> names = new HashMap<>();
    Arrays.stream(schema.fieldNames()).forEach(name -> names.put(name.toLowerCase(Locale.ROOT), name));
    return Arrays.stream(columns.split(","))
        .map(column -> names.getOrDefault(column.strip().toLowerCase(Locale.ROOT), column))
        .collect(Collectors.joining(","));
  }

  /** A constraint without its name, which may be any text, and without the words that Spark adds. */
  private static String written(Constraint constraint) {
    String ddl = constraint.toDDL();
    for (String name : List.of(constraint.name(), Columns.quoted(constraint.name()))) {
      String head = "CONSTRAINT " + name + " ";
      if (ddl.startsWith(head)) {
        ddl = ddl.substring(head.length());
        break;
      }
    }
    return ddl.replaceAll("( NOT)? ENFORCED[A-Z ]*$", "");
  }

  /** A column in a property that separates names by commas. */
  private static String column(NamedReference reference) {
    String column = String.join(".", reference.fieldNames());
    if (column.contains(",") || !column.equals(column.strip())) {
      throw Errors.mistake(
          "The column " + Columns.quoted(column) + " cannot be in the primary key or say the bucket, since these are kept as"
              + " names separated by commas: name it without commas and outer spaces.");
    }
    return column;
  }

  private static void set(Map<String, String> properties, String name, String value, String clause) {
    String other = properties.put(name, value);
    if (other != null && !other.equals(value)) {
      throw Errors.mistake(
          clause + " and the property '" + name + "' = '" + other
              + "' contradict each other: leave one out.");
    }
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) throws NoSuchTableException {
    List<Map<String, Object>> members = new ArrayList<>();
    for (TableChange change : changes) {
      Map<String, Object> found = TableChanges.members(change);
      if (found != null) {
        members.add(found);
      }
    }
    try {
      String[] parts = table.name().split("\\$", 2);
      boolean onBranch = parts.length == 2 && parts[1].startsWith(BRANCH_PREFIX);
      lake.changeTable(
          "alter_table", "table", named(onBranch ? Identifier.of(table.namespace(), parts[0]) : table), "branch",
          onBranch ? parts[1].substring(BRANCH_PREFIX.length()) : null, "changes", members);
    } catch (Errors.Refused e) {
      throw new NoSuchTableException(table);
    }
    return loadTable(table);
  }

  @Override
  public boolean dropTable(Identifier table) {
    String found = names(table.namespace(), table.name());
    if (found == null || table.name().contains("$")) {
      throw Errors.mistake(
          name + "." + quoted(table) + " is no table of its own: a system table goes with its table, and a branch with ALTER"
              + " TABLE ... DROP BRANCH.");
    }
    return lake.change("drop_table", "table", found).get("dropped").asBoolean();
  }

  /** A dropped table leaves no file. */
  @Override
  public boolean purgeTable(Identifier table) {
    return dropTable(table);
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    String old = name + "." + quoted(from);
    String next = name + "." + quoted(to).replaceFirst("^" + Pattern.quote(name + "."), "");
    throw Errors.mistake(
        "The table " + old + " cannot be renamed, since its name is its folder: CREATE TABLE " + next + " AS SELECT * FROM "
            + old + ", then drop " + old + ".");
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length > 1) {
      throw new NoSuchNamespaceException(namespace);
    }
    String[] database = namespace.length == 0 ? defaultNamespace() : namespace;
    List<Identifier> found = new ArrayList<>();
    for (JsonNode table : lake.ask("list_tables", "database", database[0]).get("names")) {
      found.add(Identifier.of(database, table.asText()));
    }
    if (found.isEmpty()) {
      loadNamespaceMetadata(database);
    }
    return found.toArray(new Identifier[0]);
  }

  // ---- CREATE TABLE AS SELECT and REPLACE

  @Override
  public StagedTable stageCreate(Identifier table, TableInfo info) throws TableAlreadyExistsException {
    create(table, info);
    String named = named(table);
    return new StagedLakebedTable(lake, named, lake.ask("load", "table", named), false);
  }

  @Override
  public StagedTable stageReplace(Identifier table, TableInfo info) throws NoSuchTableException {
    try {
      String named = named(table);
      JsonNode loaded =
          lake.find(
              "replace_table", "table", named, "schema", info.schema().json(), "partition_keys",
              partitionKeys(info.partitions()), "properties", properties(info));
      return new StagedLakebedTable(lake, named, loaded, true);
    } catch (Errors.Refused e) {
      throw new NoSuchTableException(table);
    }
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier table, TableInfo info) {
    try {
      return tableExists(table) ? stageReplace(table, info) : stageCreate(table, info);
    } catch (NoSuchTableException | TableAlreadyExistsException e) {
      throw Errors.mistake("The table " + table + " was created or dropped meanwhile: run the statement again.");
    }
  }

  // ---- databases: a database exists as long as it has tables

  @Override
  public String[][] listNamespaces() {
    Set<String> found = new java.util.TreeSet<>(created);
    lake.ask("list_databases").get("names").forEach(database -> found.add(database.asText()));
    return found.stream().map(database -> new String[] {database}).toArray(String[][]::new);
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) {
      return listNamespaces();
    }
    loadNamespaceMetadata(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 1 && Arrays.stream(listNamespaces()).anyMatch(found -> found[0].equals(namespace[0]))) {
      return Map.of();
    }
    throw new NoSuchNamespaceException(namespace);
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) throws NamespaceAlreadyExistsException {
    if (namespace.length != 1) {
      throw Errors.mistake("A database of a lake has a name of one part, and not " + String.join(".", namespace) + ".");
    }
    if (metadata.keySet().stream().anyMatch(property -> !property.equals(SupportsNamespaces.PROP_OWNER))) {
      throw noProperties();
    }
    lake.ask("check_database", "database", namespace[0]);
    if (namespaceExists(namespace)) {
      throw new NamespaceAlreadyExistsException(namespace);
    }
    created.add(namespace[0]);
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw noProperties();
  }

  private static RuntimeException noProperties() {
    return Errors.mistake(
        "A database of a lake has no properties, no comment and no location of its own: leave them out, and set properties"
            + " and comments on its tables.");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) throws NoSuchNamespaceException {
    if (namespace.length != 1) {
      throw new NoSuchNamespaceException(namespace);
    }
    Identifier[] tables = listTables(namespace);
    if (tables.length > 0 && !cascade) {
      throw Errors.mistake(
          "The database " + namespace[0] + " has " + tables.length + " tables: drop them first, or say CASCADE.");
    }
    lake.ask("check_database", "database", namespace[0], "to_drop", true);
    Arrays.stream(tables).forEach(this::dropTable);
    return created.remove(namespace[0]) || tables.length > 0;
  }

  // ---- procedures

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    List<Identifier> found = new ArrayList<>();
    if (namespace.length == 1 && namespace[0].equals(PROCEDURES)) {
      lake.ask("list_procedures").get("names").forEach(
          procedure -> found.add(Identifier.of(namespace, procedure.asText())));
    }
    return found.toArray(new Identifier[0]);
  }

  @Override
  public UnboundProcedure loadProcedure(Identifier procedure) {
    if (procedure.namespace().length != 1 || !procedure.namespace()[0].equals(PROCEDURES)) {
      throw Errors.mistake(
          "Procedures of the catalog " + name + " are in its namespace sys: CALL " + name + ".sys." + procedure.name()
              + "(...).");
    }
    return new LakebedProcedure(lake, name, procedure.name(), lake.ask("describe_procedure", "procedure", procedure.name()));
  }

  // ---- the functions by which Spark brings rows to the tasks that write their buckets

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return new Identifier[0];
  }

  @Override
  public UnboundFunction loadFunction(Identifier ident) throws NoSuchFunctionException {
    if (ident.namespace().length == 0 && ident.name().equalsIgnoreCase(BucketFunction.NAME)) {
      return new BucketFunction();
    }
    if (ident.namespace().length == 0 && ident.name().equals(SpreadFunction.NAME)) {
      return new SpreadFunction();
    }
    throw new NoSuchFunctionException(ident);
  }
}
