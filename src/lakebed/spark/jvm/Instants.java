package org.lakebed.spark;

import java.time.ZoneId;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;

/** Times that users write, in the form of messages: with their zone. */
final class Instants {
  private static final String ZONE = "spark.sql.session.timeZone";

  private Instants() {}

  /**
   * A time as TIMESTAMP AS OF reads it: a text without a zone is in the session's zone. Digits alone, which are Unix
   * milliseconds, and texts that Spark cannot parse are returned unchanged: Python parses or refuses them.
   */
  static String of(String text) {
    if (text.strip().matches("-?\\d+")) {
      return text;
    }
    ZoneId zone = DateTimeUtils.getZoneId(SparkSession.active().conf().get(ZONE));
    Option<Object> micros = DateTimeUtils.stringToTimestamp(UTF8String.fromString(text), zone);
    return micros.isDefined() ? of((Long) micros.get()) : text;
  }

  /** Microseconds since 1970 as a text. */
  static String of(long micros) {
    return DateTimeUtils.microsToInstant(micros).toString();
  }
}
