package org.lakebed.spark;

import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.parser.SqlStatementSplitResult;
import org.apache.spark.sql.catalyst.parser.TemporalIdentifier;

/** What Spark 4.3 requires of a parser, and not every other minor version. */
interface MinorParser extends ParserInterface {
  /** The parser for the texts. */
  ParserInterface spark();

  @Override
  default SqlStatementSplitResult splitStatements(String text) {
    return spark().splitStatements(text);
  }

  @Override
  default TemporalIdentifier parseTemporalTableIdentifier(String text) throws ParseException {
    return spark().parseTemporalTableIdentifier(text);
  }
}
