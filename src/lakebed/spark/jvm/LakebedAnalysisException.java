package org.lakebed.spark;

import java.util.Map;
import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A statement failed, in lakebed's words; of this class, sessions show the sentence alone.
 *
 * <p>Spark finds the text of a condition in a list of its own, so the condition is the one of that list whose text is an
 * argument. What happened is in the argument {@code kind} and in the SQL state.
 */
final class LakebedAnalysisException extends AnalysisException {
  private static final String CONDITION = "USER_RAISED_EXCEPTION";
  private static final String STATE = "42000";

  /** SQL states by the group of an error of Python; other groups: {@link #STATE}. */
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
