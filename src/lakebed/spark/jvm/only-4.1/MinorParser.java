package org.lakebed.spark;

import org.apache.spark.sql.catalyst.parser.ParserInterface;

/** What Spark 4.1 asks of a parser, and not every other minor: nothing. */
interface MinorParser extends ParserInterface {}
