package org.lakebed.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.classic.SparkSession;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Statements about tags and branches in Spark SQL, MERGE that only inserts, and messages for what Spark cannot plan:
 * {@code spark.sql.extensions=org.lakebed.spark.LakebedExtensions}.
 */
public final class LakebedExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    JarClasses.load();
    extensions.injectParser((session, parser) -> new LakebedParser((SparkSession) session, parser));
    extensions.injectCheckRule(session -> new LakebedChecks());
    extensions.injectPostHocResolutionRule(session -> new InsertingMerge());
    return BoxedUnit.UNIT;
  }
}
