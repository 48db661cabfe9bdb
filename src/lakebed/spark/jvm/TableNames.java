package org.lakebed.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;

/**
 * The table in an argument of a procedure. As in a statement, its name may have the catalog, the database, backquotes and
 * a branch.
 *
 * <p>This file and {@link LakebedParser} are the only ones that name Spark's internal class CatalogManager; tried with
 * 4.1, 4.2 and 4.3.
 *
 * @param table its name in Python's spelling.
 * @param branch the branch at the end of its name; null: main.
 */
record TableNames(String table, String branch) {
  private static final Pattern PART = Pattern.compile("\\s*(?:`((?:[^`]|``)+)`|([^`.]*?))\\s*(\\.|$)");

  /** Parse a name. {@code catalog}: the procedure's; a name of one part is in its current database. */
  static TableNames of(String text, String catalog) {
    CatalogManager catalogs = SparkSession.active().sessionState().catalogManager();
    List<String> parts = parts(text);
    if (parts.isEmpty()) {
      return new TableNames(text, null); // not a valid name, which Python reports
    }
    if (parts.size() == 3 && !parts.get(0).equals(catalog) && catalogs.isCatalogRegistered(parts.get(0))) {
      throw Errors.mistake(
          "The table " + text + " is of the catalog " + parts.get(0) + ", and the procedure of the catalog " + catalog
              + ": CALL the procedure of the table's catalog, or name a table of " + catalog + ".");
    }
    if (parts.size() > 1 && parts.get(0).equals(catalog)) {
      parts.remove(0);
    } else if (parts.size() == 1 && catalogs.currentCatalog().name().equals(catalog)) {
      parts.addAll(0, List.of(catalogs.currentNamespace()));
    }
    String[] name = parts.get(parts.size() - 1).split(Pattern.quote("$" + LakebedCatalog.BRANCH_PREFIX), 2);
    parts.set(parts.size() - 1, name[0]);
    return new TableNames(String.join(".", parts), name.length == 1 ? null : name[1]);
  }

  /** The parts of a name without their backquotes; none: it is not valid. */
  private static List<String> parts(String text) {
    List<String> parts = new ArrayList<>();
    Matcher part = PART.matcher(text);
    int end = 0;
    while (part.find(end) && part.start() == end) {
      parts.add(part.group(1) == null ? part.group(2) : part.group(1).replace("``", "`"));
      end = part.end();
      if (part.group(3).isEmpty()) {
        return parts;
      }
    }
    return List.of();
  }
}
