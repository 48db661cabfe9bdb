package org.lakebed.spark;

import org.apache.spark.sql.catalyst.analysis.PlanWithUnresolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedNamespace;
import org.apache.spark.sql.catalyst.plans.logical.AnalyzeTables;
import org.apache.spark.sql.catalyst.plans.logical.CreateView;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Error messages for statements that Spark analyses and then ends with an internal error, and for options without a
 * meaning, also those of relations that Spark leaves out of a plan: {@code WHERE false}, {@code LIMIT 0}.
 *
 * <p>This is the only file that names these classes of Spark's plans; tried with 4.1, 4.2 and 4.3.
 */
final class LakebedChecks extends AbstractFunction1<LogicalPlan, BoxedUnit> {
  @Override
  public BoxedUnit apply(LogicalPlan plan) {
    if (plan instanceof AnalyzeTables tables && tables.child() instanceof ResolvedNamespace namespace
        && namespace.catalog() instanceof LakebedCatalog catalog) {
      throw Errors.mistake(
          "ANALYZE TABLES is not possible in the catalog " + catalog.name() + ": Spark computes no statistics of such tables,"
              + " and knows their rows and bytes without.");
    }
    plan.foreach(
        node -> {
          checkView(node);
          return BoxedUnit.UNIT;
        });
    for (LogicalPlan leaf : CollectionConverters.asJava(plan.collectLeaves())) {
      if (leaf instanceof DataSourceV2Relation relation && relation.catalog().exists(LakebedCatalog.class::isInstance)) {
        boolean isTable = relation.table() instanceof LakebedTable || relation.table() instanceof RowsTable
            || relation.table() instanceof AuditTable || relation.table() instanceof RowLevelOperationTable;
        Options.check("a batch of " + relation.table().name(), relation.options(), isTable ? Options.READ : Options.CHANGES);
      }
      if (leaf instanceof RelationTimeTravel travel && travel.relation() instanceof PlanWithUnresolvedIdentifier) {
        throw Errors.mistake(
            "IDENTIFIER(...) before VERSION AS OF or TIMESTAMP AS OF takes one literal or parameter, and no expression: compute"
                + " the name before, or EXECUTE IMMEDIATE the whole statement.");
      }
    }
    return BoxedUnit.UNIT;
  }

  /** Spark refuses a view in a catalog that has none, but not if its query begins with WITH. */
  private static void checkView(LogicalPlan node) {
    if (node instanceof CreateView view && view.child() instanceof ResolvedIdentifier name
        && name.catalog() instanceof LakebedCatalog catalog) {
      throw Errors.mistake(
          "The catalog " + catalog.name() + " stores no views: CREATE TEMPORARY VIEW " + name.identifier().name()
              + ", or create the view in spark_catalog.");
    }
  }
}
