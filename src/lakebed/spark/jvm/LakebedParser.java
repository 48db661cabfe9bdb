package org.lakebed.spark;

import java.util.Objects;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.parser.ParameterContext;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's parser, extended by statements about tags and branches: each becomes the CALL or the query of the same meaning.
 *
 * <p>This file, {@link LakebedExtensions} and {@link MinorParser} are the only ones that name Spark's internal classes of
 * the parser, and this file and {@link TableNames} the only ones that name CatalogManager; tried with 4.1, 4.2 and 4.3.
 */
record LakebedParser(SparkSession session, ParserInterface spark) implements MinorParser {
  /** A text that Spark's parser can parse. */
  private String readable(String text) throws ParseException {
    return TagStatement.replaced(text, statement -> Objects.requireNonNullElse(sql(statement), statement.text()));
  }

  /** The CALL or the query of a statement; null: its table belongs to another catalog. */
  private String sql(TagStatement statement) throws ParseException {
    CatalogManager catalogs = session.sessionState().catalogManager();
    Seq<String> written = spark.parseMultipartIdentifier(statement.table());
    String[] parts = CollectionConverters.asJava(written).toArray(new String[0]);
    int skipped = parts.length > 1 && catalogs.isCatalogRegistered(parts[0]) ? 1 : 0;
    CatalogPlugin catalog = skipped == 1 ? catalogs.catalog(parts[0]) : catalogs.currentCatalog();
    if (!(catalog instanceof LakebedCatalog lakebed)) {
      return null;
    }
    String[] namespace = parts.length == 1 ? catalogs.currentNamespace() : new String[0];
    String[] table = new String[namespace.length + parts.length - skipped];
    System.arraycopy(namespace, 0, table, 0, namespace.length);
    System.arraycopy(parts, skipped, table, namespace.length, parts.length - skipped);
    return statement.sql(lakebed.name(), table);
  }

  @Override
  public LogicalPlan parsePlan(String text) throws ParseException {
    return spark.parsePlan(readable(text));
  }

  @Override
  public LogicalPlan parsePlanWithParameters(String text, ParameterContext parameters) throws ParseException {
    return spark.parsePlanWithParameters(readable(text), parameters);
  }

  @Override
  public LogicalPlan parseQuery(String text) throws ParseException {
    return spark.parseQuery(text);
  }

  @Override
  public Expression parseExpression(String text) throws ParseException {
    return spark.parseExpression(text);
  }

  @Override
  public TableIdentifier parseTableIdentifier(String text) throws ParseException {
    return spark.parseTableIdentifier(text);
  }

  @Override
  public FunctionIdentifier parseFunctionIdentifier(String text) throws ParseException {
    return spark.parseFunctionIdentifier(text);
  }

  @Override
  public Seq<String> parseMultipartIdentifier(String text) throws ParseException {
    return spark.parseMultipartIdentifier(text);
  }

  @Override
  public StructType parseRoutineParam(String text) throws ParseException {
    return spark.parseRoutineParam(text);
  }

  @Override
  public StructType parseTableSchema(String text) throws ParseException {
    return spark.parseTableSchema(text);
  }

  @Override
  public DataType parseDataType(String text) throws ParseException {
    return spark.parseDataType(text);
  }
}
