package org.lakebed.spark;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.CacheManager;
import org.apache.spark.sql.connector.catalog.Identifier;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's cache of tables. After INSERT, Spark computes the cached rows again under the name that the statement used.
 * This class does so after every change, under every name of the table: those in other catalogs, of its branches and of
 * its system tables.
 *
 * <p>This is the only file that names Spark's internal class CacheManager; tried with 4.1, 4.2 and 4.3.
 */
final class CachedTables {
  /** Names under which a table was loaded, with the catalog. Tables of different lakes may share a key. */
  private static final Map<String, Set<List<String>>> NAMES = new ConcurrentHashMap<>();

  private CachedTables() {}

  /** Remember the name under which a table was loaded. {@code table}: in Python's spelling, without a branch. */
  static void remember(String table, String catalog, Identifier identifier) {
    String[] namespace = identifier.namespace();
    String[] name = new String[namespace.length + 2];
    name[0] = catalog;
    System.arraycopy(namespace, 0, name, 1, namespace.length);
    name[name.length - 1] = identifier.name();
    NAMES.computeIfAbsent(table, key -> ConcurrentHashMap.newKeySet()).add(List.of(name));
  }

  /**
   * Compute the cached rows of a table again, except for versions that queries name, which were resolved when the query
   * was analysed. Rows that cannot be computed, such as those of a dropped table, are no longer cached.
   */
  static void refresh(String table) {
    Option<SparkSession> active = SparkSession.getActiveSession().orElse(SparkSession::getDefaultSession);
    if (active.isEmpty()) {
      return;
    }
    CacheManager cache = active.get().sharedState().cacheManager();
    if (cache.isEmpty()) {
      return;
    }
    String key = table.contains(".") ? table : LakebedCatalog.DEFAULT_DATABASE + "." + table;
    for (List<String> parts : NAMES.getOrDefault(key, Set.of())) {
      Seq<String> name = CollectionConverters.asScala(parts).toSeq();
      try {
        cache.recacheTableOrView(active.get(), name, false);
      } catch (Exception e) { // also a checked one, because Scala declares none
        cache.uncacheTableOrView(active.get(), name, true, false);
      }
    }
  }
}
