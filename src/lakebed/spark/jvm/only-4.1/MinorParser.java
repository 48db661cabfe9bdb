package org.lakebed.spark;

import org.apache.spark.sql.catalyst.parser.ParserInterface;

/** What only Spark 4.1 requires of a parser, and not every other minor version: nothing. */
interface MinorParser extends ParserInterface {}
