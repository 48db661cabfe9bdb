package org.lakebed.spark;

import org.apache.spark.sql.connector.catalog.TableCatalog;

/** What Spark 4.1 asks of a catalog, and not every other minor: nothing. */
interface MinorCatalog extends TableCatalog {
  /** Whether the catalog is asked for a table with the option that names a branch. */
  boolean LOADS_WITH_OPTIONS = false;
}
