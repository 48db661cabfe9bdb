package org.lakebed.spark;

import java.util.Arrays;
import java.util.stream.Stream;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of reads and writes. One that means nothing is a mistake: ignored, it would read another version than the
 * one that was asked for. Options of a stream that reads a table are the bridge's.
 */
final class Options {
  /** Of a batch that reads a version of a table, or a system table. */
  static final String[] READ = {"versionAsOf", "timestampAsOf", LakebedCatalog.BRANCH_OPTION};

  /** Of a batch that writes. */
  static final String[] WRITE = {LakebedCatalog.BRANCH_OPTION};

  /** Of a stream that writes; with those that Spark itself has. */
  static final String[] STREAM_WRITE = {
    LakebedCatalog.BRANCH_OPTION, LakebedStreamWrite.APPLICATION, "checkpointLocation", "queryName",
    "asyncProgressTrackingEnabled", "asyncProgressTrackingCheckpointIntervalMs"
  };

  /** Of a batch that reads changes; all but the branch are Spark's. */
  static final String[] CHANGES = {
    LakebedCatalog.BRANCH_OPTION, "startingVersion", "endingVersion", "startingTimestamp", "endingTimestamp",
    "startingBoundInclusive", "endingBoundInclusive", "deduplicationMode", "computeUpdates"
  };

  /** Of a stream that reads changes. */
  static final String[] STREAM_CHANGES =
      Stream.concat(Arrays.stream(CHANGES), Stream.of("maxSnapshotsPerTrigger", "consumer")).toArray(String[]::new);

  private Options() {}

  /** Refuse an option that is not known; those with certain beginnings are Spark's own. {@code what}: the read or write. */
  static void check(String what, CaseInsensitiveStringMap options, String... known) {
    for (String option : options.keySet()) {
      if (!option.startsWith("__") && !option.startsWith("spark.") && Arrays.stream(known).noneMatch(option::equalsIgnoreCase)) {
        throw Errors.mistake(
            "The option " + option + " is not known for " + what + ": the options are " + String.join(", ", known) + ".");
      }
    }
  }
}
