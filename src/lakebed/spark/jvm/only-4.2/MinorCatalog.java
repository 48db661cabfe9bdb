package org.lakebed.spark;

import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Spark 4.2 requires of a catalog, and not every other minor version. */
interface MinorCatalog extends TableCatalog {
  /** Whether Spark passes the option that names a branch when it loads a table. */
  boolean LOADS_WITH_OPTIONS = false;

  Lake lake();

  String named(Identifier table);

  @Override
  default Changelog loadChangelog(Identifier table, ChangelogContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    return LakebedChangelog.of(this, table, options, context.range());
  }

  @Override
  default Table createTableLike(Identifier table, TableInfo info, Table source) throws TableAlreadyExistsException {
    return ((LakebedCatalog) this).createTable(table, info);
  }
}
