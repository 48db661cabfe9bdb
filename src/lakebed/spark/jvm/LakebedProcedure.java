package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A procedure that Python describes and runs. */
final class LakebedProcedure implements UnboundProcedure, BoundProcedure {
  private final Lake lake;
  private final String name;
  private final JsonNode description;

  LakebedProcedure(Lake lake, String name, JsonNode description) {
    this.lake = lake;
    this.name = name;
    this.description = description;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String description() {
    return description.get("doc").asText();
  }

  @Override
  public BoundProcedure bind(StructType arguments) {
    return this;
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public ProcedureParameter[] parameters() {
    List<ProcedureParameter> found = new ArrayList<>();
    for (JsonNode parameter : description.get("parameters")) {
      var made = ProcedureParameter.in(parameter.get("name").asText(), DataType.fromDDL(parameter.get("type").asText()));
      found.add((parameter.get("optional").asBoolean() ? made.defaultValue("NULL") : made).build());
    }
    return found.toArray(new ProcedureParameter[0]);
  }

  @Override
  public Iterator<Scan> call(InternalRow input) {
    Map<String, Object> arguments = new LinkedHashMap<>();
    ProcedureParameter[] parameters = parameters();
    for (int i = 0; i < parameters.length; i++) {
      if (!input.isNullAt(i)) {
        Object value = input.get(i, parameters[i].dataType());
        arguments.put(parameters[i].name(), value instanceof Number || value instanceof Boolean ? value : value.toString());
      }
    }
    JsonNode reply = lake.change("call", "procedure", name, "arguments", arguments);
    return List.<Scan>of(new RowsTable(name, ArrowRows.take(reply.get("rows").asText()))).iterator();
  }
}
