package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * What tasks need to write the files of a table themselves: the location of the files, their columns and encoding.
 *
 * <p>Made by lakebed.spark.tasks.native_writes, which describes the members. Contains no credential.
 */
final class FileTarget {
  final String root;
  final int schemaId;
  final String directory;
  final String prefix;
  final StructType schema;
  final String codec;
  final int level;
  final long fileBytes;
  final long rowGroupBytes;
  final List<String> withoutDictionary;
  final List<Column> partition;
  final boolean legacyNames;
  final String defaultName;
  final int bucketCount;
  final List<Column> bucketKeys;

  /** A column by its position, with its type in the table's spelling. */
  record Column(int position, String name, String root, int precision, DataType type) {}

  private FileTarget(JsonNode json) {
    root = json.get("root").asText();
    schemaId = json.get("schema_id").asInt();
    directory = json.get("directory").asText();
    prefix = json.get("prefix").asText();
    schema = Columns.of(json.get("schema").asText());
    codec = json.get("codec").asText();
    level = json.get("level").asInt();
    fileBytes = json.get("file_bytes").asLong();
    rowGroupBytes = json.get("row_group_bytes").asLong();
    withoutDictionary = new ArrayList<>();
    json.get("without_dictionary").forEach(name -> withoutDictionary.add(name.asText()));
    partition = columns(json.get("partition"));
    legacyNames = json.get("legacy_names").asBoolean();
    defaultName = json.get("default_name").asText();
    bucketCount = json.get("bucket_count").asInt();
    bucketKeys = columns(json.get("bucket_keys"));
  }

  static FileTarget of(String json) {
    try {
      return new FileTarget(Bridge.JSON.readTree(json));
    } catch (IOException e) {
      throw new IllegalArgumentException(e);
    }
  }

  /**
   * The order of the rows of a task, which has one file open at a time: by partition, then by bucket.
   *
   * @param bucket null: the table has none.
   */
  static SortOrder[] ordering(List<String> partitionKeys, Expression bucket) {
    return by(partitionKeys, bucket).stream()
        .map(expression -> Expressions.sort(expression, SortDirection.ASCENDING))
        .toArray(SortOrder[]::new);
  }

  /** The columns of partitions, and then the bucket, if there is one. */
  static List<Expression> by(List<String> partitionKeys, Expression bucket) {
    List<Expression> found = new ArrayList<>();
    partitionKeys.forEach(name -> found.add(Columns.reference(name)));
    if (bucket != null) {
      found.add(bucket);
    }
    return found;
  }

  private List<Column> columns(JsonNode described) {
    List<Column> found = new ArrayList<>();
    for (JsonNode column : described) {
      int position = schema.fieldIndex(column.get("name").asText());
      found.add(
          new Column(
              position, column.get("name").asText(), column.get("root").asText(), column.get("precision").asInt(),
              schema.fields()[position].dataType()));
    }
    return List.copyOf(found);
  }
}
