package org.lakebed.spark;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.runtime.AbstractPartialFunction;

/**
 * A MERGE with only WHEN NOT MATCHED clauses. Spark does not ask the table for a row-level operation for it, but appends
 * those rows of the source that an anti join with the target keeps.
 *
 * <p>The rule gives such a plan a table whose scan has every row, like the scans of row-level operations, and whose
 * commit is refused if another writer changed what was read. The rule runs after Spark made the plan, and before Spark
 * loads the tables of the plan again.
 *
 * <p>This is the only file that names Spark's internal classes V2WriteCommand, DataSourceV2Relation and SQLExecution;
 * tried with 4.1, 4.2 and 4.3.
 */
final class InsertingMerge extends Rule<LogicalPlan> {
  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    return plan.resolveOperators(
        new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
          @Override
          public boolean isDefinedAt(LogicalPlan node) {
            return node instanceof V2WriteCommand write && target(write) != null;
          }

          @Override
          public LogicalPlan apply(LogicalPlan node) {
            V2WriteCommand write = (V2WriteCommand) node;
            DataSourceV2Relation target = target(write);
            LakebedTable table = ((LakebedTable) target.table()).insertingMissing();
            LogicalPlan query = write.query().resolveOperators(new Swap(target, table));
            return (LogicalPlan) write.withNewTable(with(target, table)).withNewQuery(query);
          }
        });
  }

  /** Replaces the relations of the target. */
  private static final class Swap extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
    private final DataSourceV2Relation target;
    private final LakebedTable table;

    Swap(DataSourceV2Relation target, LakebedTable table) {
      this.target = target;
      this.table = table;
    }

    @Override
    public boolean isDefinedAt(LogicalPlan node) {
      return isSame(node, target);
    }

    @Override
    public LogicalPlan apply(LogicalPlan node) {
      return with((DataSourceV2Relation) node, table);
    }
  }

  private static DataSourceV2Relation with(DataSourceV2Relation relation, LakebedTable table) {
    return relation.copy(
        table, relation.output(), relation.catalog(), relation.identifier(), relation.options(),
        relation.timeTravelSpec());
  }

  /**
   * The relation of a table that such a MERGE reads and appends to; null: the plan is not such a MERGE.
   *
   * <p>Both sides have identical attributes. If another statement reads the table that it writes, Spark gives the
   * attributes that it reads new identities.
   */
  private static DataSourceV2Relation target(V2WriteCommand write) {
    return write.table() instanceof DataSourceV2Relation relation && relation.table() instanceof LakebedTable table
            && table instanceof SupportsRowLevelOperations && !table.insertsMissing()
            && write.query().exists(node -> isSame(node, relation))
        ? relation
        : null;
  }

  private static boolean isSame(LogicalPlan node, DataSourceV2Relation target) {
    return node instanceof DataSourceV2Relation relation && !relation.outputSet().intersect(target.outputSet()).isEmpty();
  }

  /** Refuse the rows of such a MERGE in a session without the rule, if its read left out rows. */
  static void checkSeesAll(LakebedTable table) {
    if (!table.hidesNew() || table.insertsMissing()) {
      return;
    }
    String id = SparkSession.active().sparkContext().getLocalProperty(SQLExecution$.MODULE$.EXECUTION_ID_KEY());
    QueryExecution execution = id == null ? null : SQLExecution$.MODULE$.getQueryExecution(Long.parseLong(id));
    if (execution != null && execution.analyzed() instanceof V2WriteCommand write && target(write) != null) {
      throw Errors.mistake(
          "A MERGE into " + table.name() + " that has WHEN NOT MATCHED clauses alone needs lakebed's extension, without"
              + " which it does not see the rows that no compaction has seen: start the session with"
              + " spark.sql.extensions=" + LakebedExtensions.class.getName()
              + ", or add WHEN MATCHED AND false THEN DELETE to the statement.");
    }
  }
}
