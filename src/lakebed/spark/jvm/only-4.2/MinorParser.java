package org.lakebed.spark;

import org.apache.spark.sql.catalyst.parser.ParserInterface;

/** What Spark 4.2 requires of a parser, and not every other minor version: nothing. */
interface MinorParser extends ParserInterface {}
