package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.AtomicType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;

/** A procedure of a catalog that Python describes and runs. */
record LakebedProcedure(Lake lake, String catalog, String name, JsonNode described) implements UnboundProcedure {
  /** The argument that names a table. */
  private static final String TABLE = "table";

  @Override
  public String description() {
    return described.get("doc").asText() + " Arguments: "
        + parameters().map(LakebedProcedure::shown).collect(Collectors.joining(", ")) + ".";
  }

  private static String shown(JsonNode parameter) {
    String text = parameter.get("name").asText() + " " + parameter.get("type").asText();
    return parameter.get("optional").asBoolean() ? "[" + text + "]" : text;
  }

  @Override
  public BoundProcedure bind(StructType arguments) {
    return new Bound(this, parameters(arguments));
  }

  /** Whether a parameter is a time. */
  private boolean isTime(int parameter) {
    return described.get("parameters").get(parameter).get("type").asText().equals("timestamp");
  }

  private Stream<JsonNode> parameters() {
    return StreamSupport.stream(described.get("parameters").spliterator(), false);
  }

  /** The parameters, with the types in which the arguments are accepted. */
  private ProcedureParameter[] parameters(StructType arguments) {
    Map<String, DataType> named = new LinkedHashMap<>();
    List<DataType> placed = new ArrayList<>();
    for (StructField argument : arguments.fields()) {
      if (argument.metadata().contains(ProcedureParameter.BY_NAME_METADATA_KEY)) {
        named.put(argument.name().toLowerCase(Locale.ROOT), argument.dataType());
      } else {
        placed.add(argument.dataType());
      }
    }
    List<ProcedureParameter> found = new ArrayList<>();
    for (JsonNode parameter : described.get("parameters")) {
      String key = parameter.get("name").asText();
      DataType given = found.size() < placed.size() ? placed.get(found.size()) : named.get(key);
      var made = ProcedureParameter.in(key, taken(DataType.fromDDL(parameter.get("type").asText()), given));
      found.add((parameter.get("optional").asBoolean() ? made.defaultValue("NULL") : made).build());
    }
    return found.toArray(new ProcedureParameter[0]);
  }

  /**
   * The type in which an argument is accepted. A text for a number or a time is accepted as it is, and Python parses it.
   * Spark's cast would fail with an error of Java, and outside of ANSI mode return null, which is the default.
   */
  private static DataType taken(DataType declared, DataType given) {
    if (!(given instanceof AtomicType)) {
      return declared; // none, NULL, or a type that Spark refuses
    }
    if (declared instanceof TimestampType) {
      return given instanceof TimestampType ? given : DataTypes.StringType;
    }
    if (declared instanceof StringType) {
      return given instanceof DayTimeIntervalType ? given : declared;
    }
    if (declared instanceof BooleanType) {
      return given instanceof BooleanType ? declared : DataTypes.StringType;
    }
    return given instanceof IntegralType ? DataTypes.LongType : DataTypes.StringType;
  }

  /** The procedure for arguments of certain types. */
  private record Bound(LakebedProcedure procedure, ProcedureParameter[] parameters) implements BoundProcedure {
    @Override
    public String name() {
      return procedure.name;
    }

    @Override
    public String description() {
      return procedure.description();
    }

    @Override
    public boolean isDeterministic() {
      return false;
    }

    @Override
    public Iterator<Scan> call(InternalRow input) {
      Map<String, Object> arguments = new LinkedHashMap<>();
      for (int i = 0; i < parameters.length; i++) {
        if (!input.isNullAt(i)) {
          DataType type = parameters[i].dataType();
          Object value = value(parameters[i].name(), input.get(i, type), type);
          arguments.put(parameters[i].name(), procedure.isTime(i) && value instanceof String text ? Instants.of(text) : value);
        }
      }
      String branch = null;
      if (arguments.get(TABLE) instanceof String table) {
        TableNames named = TableNames.of(table, procedure.catalog);
        arguments.put(TABLE, named.table());
        branch = named.branch();
      }
      JsonNode reply =
          procedure.lake.change("call", "procedure", procedure.name, "arguments", arguments, "branch", branch);
      return List.<Scan>of(new RowsTable(procedure.name, ArrowRows.take(reply.get("rows").asText()))).iterator();
    }

    /** A value in the form of messages: a time with its zone, and a duration as ISO 8601. */
    private Object value(String name, Object value, DataType type) {
      if (type instanceof TimestampType) {
        return Instants.of((Long) value);
      }
      if (type instanceof DayTimeIntervalType) {
        return Duration.of((Long) value, ChronoUnit.MICROS).toString();
      }
      if (!Predicates.isText(value)) {
        throw Errors.mistake("The argument " + name + " of " + procedure.name + " is not UTF-8: give a text that is.");
      }
      return value instanceof Number || value instanceof Boolean ? value : value.toString();
    }
  }
}
