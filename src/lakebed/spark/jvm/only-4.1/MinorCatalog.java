package org.lakebed.spark;

import org.apache.spark.sql.connector.catalog.TableCatalog;

/** What only Spark 4.1 requires of a catalog, and not every other minor version: nothing. */
interface MinorCatalog extends TableCatalog {
  /** Whether Spark passes the option that names a branch when it loads a table. */
  boolean LOADS_WITH_OPTIONS = false;
}
