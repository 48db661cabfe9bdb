package org.lakebed.spark;

/** Errors of Python as exceptions of Spark. */
final class Errors {
  private Errors() {}

  /** Return the exception of an error. Throw {@link Refused}: of a missing or existing table. */
  static RuntimeException of(String kind, String group, String message) throws Refused {
    if (kind.equals("table_not_found") || kind.equals("table_exists")) {
      throw new Refused(new LakebedAnalysisException(kind, group, message));
    }
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException(kind, group, message));
  }

  /** Throw an AnalysisException, which is checked, where Spark's interfaces declare none. */
  static RuntimeException mistake(String message) {
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException("invalid_request", "InvalidRequest", message));
  }

  /** As {@link #mistake}, of a request that changes nothing and got no answer. */
  static RuntimeException unavailable(String message) {
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException("process_ended", "Unavailable", message));
  }

  /** As {@link #mistake}, of a change that may have happened. */
  static RuntimeException unknown(String message) {
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException("outcome_unknown", "OutcomeUnknown", message));
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException thrown(Throwable error) throws E {
    throw (E) error;
  }

  /** An error for which Spark's catalogs have an exception of their own. */
  static final class Refused extends Exception {
    private final LakebedAnalysisException mistake;

    Refused(LakebedAnalysisException mistake) {
      super(mistake.getMessage());
      this.mistake = mistake;
    }

    /** The same where Spark's catalogs have none. */
    RuntimeException mistake() {
      return Errors.<RuntimeException>thrown(mistake);
    }
  }
}
