package org.lakebed.spark;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;

/** Starting Python processes, and the version that they must have. */
final class Python {
  private static final String VERSION = version();

  private Python() {}

  /** Start a module. It uses this process's standard error. Its command line contains nothing secret. */
  static Process start(String python, String module) {
    try {
      return new ProcessBuilder(python, "-m", module).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    } catch (IOException e) {
      throw Errors.mistake(
          "The Python of lakebed, " + python + ", cannot be started (" + e.getMessage()
              + "): let spark.sql.catalog.NAME.python, or PYSPARK_PYTHON, name a Python with lakebed[spark].");
    }
  }

  /** Refuse a Python process of another lakebed than the one with which this jar was built. */
  static void checkVersion(String answered, String python) {
    if (!VERSION.equals(answered)) {
      throw Errors.mistake(
          "The jar is of lakebed " + VERSION + ", and " + python + " has lakebed " + answered
              + ": install the same version for both.");
    }
  }

  /** Whether this jar belongs to that version of lakebed. */
  static boolean isVersion(String version) {
    return VERSION.equals(version);
  }

  /** The interpreter in the settings, otherwise the one that this machine's environment names. */
  static String orDefault(String set) {
    return set != null ? set : System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
  }

  private static String version() {
    try (InputStream in = Python.class.getResourceAsStream("version.txt")) {
      return in == null ? "unknown" : new String(in.readAllBytes(), StandardCharsets.UTF_8).trim();
    } catch (IOException e) {
      return "unknown";
    }
  }
}
