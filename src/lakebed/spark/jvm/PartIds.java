package org.lakebed.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.parquet.schema.GroupType;
import org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.Type;

/**
 * Field ids of elements, keys and values in data files, which Spark's writer leaves out.
 *
 * <p>They are those of {@code lakebed.table.model.types.part_id}, counted from the id of the column or member that
 * contains the part. DO NOT CHANGE: other clients find parts of columns by them.
 */
final class PartIds {
  private static final int BASE = 0x1FFF_FFFF;
  private static final int PARTS = 1024;

  private PartIds() {}

  /** The same schema with the ids of all parts of columns that have an id. */
  static MessageType add(MessageType schema) {
    return new MessageType(schema.getName(), addToMembers(schema));
  }

  private static List<Type> addToMembers(GroupType group) {
    List<Type> members = new ArrayList<>();
    for (Type member : group.getFields()) {
      members.add(member.getId() == null ? member : addInside(member, member.getId().intValue(), 0));
    }
    return members;
  }

  private static Type addInside(Type type, int id, int depth) {
    if (type.isPrimitive()) {
      return type;
    }
    GroupType group = type.asGroupType();
    LogicalTypeAnnotation kind = group.getLogicalTypeAnnotation();
    boolean isMap = kind instanceof LogicalTypeAnnotation.MapLogicalTypeAnnotation;
    if (!isMap && !(kind instanceof LogicalTypeAnnotation.ListLogicalTypeAnnotation)) {
      return group.withNewFields(addToMembers(group));
    }
    GroupType repeated = group.getType(0).asGroupType();
    List<Type> parts = new ArrayList<>();
    for (Type part : repeated.getFields()) {
      int offset = id * PARTS + depth + 1;
      boolean isKey = isMap && parts.isEmpty();
      parts.add(addInside(part, id, depth + 1).withId(isKey ? BASE - offset : BASE + offset));
    }
    return group.withNewFields(repeated.withNewFields(parts));
  }
}
