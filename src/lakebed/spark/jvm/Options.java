package org.lakebed.spark;

import java.util.Arrays;
import java.util.stream.Stream;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of reads and writes. An option without a meaning is a mistake: if it were ignored, another version than the
 * intended one would be read. The bridge checks options of a stream that reads a table.
 */
final class Options {
  /** Options of a batch that reads a version of a table, or a system table. */
  static final String[] READ = {"versionAsOf", "timestampAsOf", LakebedCatalog.BRANCH_OPTION};

  /** Options of a batch that writes. */
  static final String[] WRITE = {LakebedCatalog.BRANCH_OPTION};

  /** Options of a stream that writes, in addition to Spark's. */
  static final String[] STREAM_WRITE = {
    LakebedCatalog.BRANCH_OPTION, LakebedStreamWrite.APPLICATION, "checkpointLocation", "queryName",
    "asyncProgressTrackingEnabled", "asyncProgressTrackingCheckpointIntervalMs"
  };

  /** Options of a batch that reads changes. All except the branch are Spark's. */
  static final String[] CHANGES = {
    LakebedCatalog.BRANCH_OPTION, "startingVersion", "endingVersion", "startingTimestamp", "endingTimestamp",
    "startingBoundInclusive", "endingBoundInclusive", "deduplicationMode", "computeUpdates"
  };

  /** Options of a stream that reads changes. */
  static final String[] STREAM_CHANGES =
      Stream.concat(Arrays.stream(CHANGES), Stream.of("maxSnapshotsPerTrigger", "consumer")).toArray(String[]::new);

  private Options() {}

  /** Refuse an unknown option. Some prefixes mark Spark's own options. {@code what}: the read or write. */
  static void check(String what, CaseInsensitiveStringMap options, String... known) {
    for (String option : options.keySet()) {
      if (!option.startsWith("__") && !option.startsWith("spark.") && Arrays.stream(known).noneMatch(option::equalsIgnoreCase)) {
        throw Errors.mistake(
            "The option " + option + " is not known for " + what + ": the options are " + String.join(", ", known) + ".");
      }
    }
  }
}
