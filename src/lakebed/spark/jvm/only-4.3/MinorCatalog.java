package org.lakebed.spark;

import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableContext;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TimeTravel;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Spark 4.3 requires of a catalog, and not every other minor version. */
interface MinorCatalog extends TableCatalog {
  /** Whether Spark passes the option that names a branch when it loads a table. */
  boolean LOADS_WITH_OPTIONS = true;

  Table load(Identifier table, String version, Long micros, String branch) throws NoSuchTableException;

  Lake lake();

  String named(Identifier table);

  @Override
  default Set<String> tableStateOptionKeys() {
    return Set.of(LakebedCatalog.BRANCH_OPTION);
  }

  @Override
  default Table loadTable(Identifier table, TableContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    TimeTravel travel = context.timeTravel().orElse(null);
    String version = travel instanceof TimeTravel.AsOfVersion of ? of.version() : null;
    Long micros = travel instanceof TimeTravel.AsOfTimestamp of ? of.micros() : null;
    return load(table, version, micros, options.get(LakebedCatalog.BRANCH_OPTION));
  }

  @Override
  default Set<String> changelogStateOptionKeys() {
    return Set.of(LakebedCatalog.BRANCH_OPTION);
  }

  @Override
  default Changelog loadChangelog(Identifier table, ChangelogContext context, CaseInsensitiveStringMap options)
      throws NoSuchTableException {
    return LakebedChangelog.of(this, table, options, context.range());
  }

  @Override
  default Table createTableLike(Identifier table, TableInfo info, Table source) throws TableAlreadyExistsException {
    return ((LakebedCatalog) this).createTable(table, source instanceof LakebedTable like ? like.copied(info) : info);
  }
}
