package org.lakebed.spark;

import java.util.Map;
import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A failed statement, with lakebed's message. Sessions show only the message of this class.
 *
 * <p>Spark takes the text of a condition from a list of its own. So the condition is the one in that list whose text is an
 * argument. The argument {@code kind} and the SQL state tell the kind of error.
 */
final class LakebedAnalysisException extends AnalysisException {
  private static final String CONDITION = "USER_RAISED_EXCEPTION";
  private static final String STATE = "42000";

  /** SQL states by the group of an error of Python; for other groups: {@link #STATE}. */
  private static final Map<String, String> STATES =
      Map.of(
          "NotFound", "42704", "AlreadyExists", "42710", "Conflict", "40001", "OutcomeUnknown", "08007", "Unavailable",
          "58030", "Corruption", "XX001", "UnsupportedFormat", "0A000", "InternalError", "XX000");

  private final String state;

  LakebedAnalysisException(String kind, String group, String message) {
    super(
        message, Option.empty(), Option.empty(), Option.empty(), Option.apply(CONDITION),
        scala.collection.immutable.Map.from(
            CollectionConverters.asScala(Map.of("errorMessage", message, "kind", kind))),
        new QueryContext[0]);
    state = STATES.getOrDefault(group, STATE);
  }

  @Override
  public String getSqlState() {
    return state;
  }
}
