package org.lakebed.spark;

import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;
import scala.collection.immutable.Map$;

/** A statement failed, in lakebed's words; of this class, sessions show the sentence alone. */
final class LakebedAnalysisException extends AnalysisException {
  LakebedAnalysisException(String message) {
    super(message, Option.empty(), Option.empty(), Option.empty(), Option.empty(), Map$.MODULE$.empty(), new QueryContext[0]);
  }
}
