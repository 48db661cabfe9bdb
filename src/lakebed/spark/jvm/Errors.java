package org.lakebed.spark;

/** Errors of Python as exceptions of Spark. */
final class Errors {
  private Errors() {}

  /** Return the exception of an error: of a missing or existing table as {@link Refused}, which catalogs translate. */
  static RuntimeException of(String kind, String group, String message) {
    if (kind.equals("table_not_found") || kind.equals("table_exists")) {
      return new Refused(kind, message);
    }
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException(kind, group, message));
  }

  /** Throw an AnalysisException, which is checked, where Spark's interfaces declare none. */
  static RuntimeException mistake(String message) {
    return Errors.<RuntimeException>thrown(new LakebedAnalysisException("invalid_request", "InvalidRequest", message));
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException thrown(Throwable error) throws E {
    throw (E) error;
  }

  /** An error with an exception of Spark's own. */
  static final class Refused extends RuntimeException {
    final String kind;

    Refused(String kind, String message) {
      super(message);
      this.kind = kind;
    }
  }
}
