package org.lakebed.spark;

/** Errors of Python as exceptions of Spark. */
final class Errors {
  private Errors() {}

  /** Return the exception for an error. Throw {@link Refused} for a missing or existing table. */
  static RuntimeException of(String kind, String group, String message) throws Refused {
    if (kind.equals("table_not_found") || kind.equals("table_exists")) {
      throw new Refused(new LakebedAnalysisException(kind, group, message));
    }
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException(kind, group, message));
  }

  /** Throw an AnalysisException. It is checked, and Spark's interfaces do not declare it. */
  static RuntimeException mistake(String message) {
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException("invalid_request", "InvalidRequest", message));
  }

  /** As {@link #mistake}, for a request without an answer that changes nothing. */
  static RuntimeException unavailable(String message) {
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException("process_ended", "Unavailable", message));
  }

  /** As {@link #mistake}, for a change that may have happened. */
  static RuntimeException unknown(String message) {
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException("outcome_unknown", "OutcomeUnknown", message));
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException thrown(Throwable error) throws E {
    throw (E) error;
  }

  /** An error for which Spark's catalogs have a separate exception. */
  static final class Refused extends Exception {
    private final LakebedAnalysisException mistake;

    Refused(LakebedAnalysisException mistake) {
      super(mistake.getMessage());
      this.mistake = mistake;
    }

    /** The exception for the same error in a method for which Spark's catalogs have none. */
    RuntimeException mistake() {
      return Errors.<RuntimeException>thrown(mistake);
    }
  }
}
