package org.lakebed.spark;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;

/** Changes of ALTER TABLE in the form of messages. */
final class TableChanges {
  /** The clauses that set properties which tables do not have. */
  private static final Map<String, String> PLACES =
      Map.of(TableCatalog.PROP_LOCATION, "SET LOCATION", TableCatalog.PROP_COLLATION, "DEFAULT COLLATION");

  private TableChanges() {}

  /** A change in the form of messages; null: there is nothing to change. */
  static Map<String, Object> members(TableChange change) {
    if (change instanceof TableChange.SetProperty set) {
      String clause = PLACES.get(set.property());
      if (clause != null) {
        throw Errors.mistake(
            "ALTER TABLE ... " + clause + " is not possible: a table of a lake stays in the lake's own folder, and compares texts"
                + " by their bytes.");
      }
      return members("set", set.property(), "value", set.value());
    }
    if (change instanceof TableChange.RemoveProperty remove) {
      return members("unset", remove.property());
    }
    if (change instanceof TableChange.AddColumn add) {
      if (!add.isNullable()) {
        throw Errors.mistake("A column that is added is null in existing rows: add " + name(add) + " without NOT NULL.");
      }
      if (add.defaultValue() != null) {
        throw noDefault(add);
      }
      Columns.checkType(name(add), add.dataType());
      return members(
          "add", path(add), "type", add.dataType().json(), "after", after(add.position()), "comment", add.comment());
    }
    if (change instanceof TableChange.DeleteColumn delete) {
      return members("drop", path(delete));
    }
    if (change instanceof TableChange.RenameColumn rename) {
      return members("rename", path(rename), "value", rename.newName());
    }
    if (change instanceof TableChange.UpdateColumnType update) {
      Columns.checkType(name(update), update.newDataType());
      return members("widen", path(update), "type", update.newDataType().json());
    }
    if (change instanceof TableChange.UpdateColumnPosition move) {
      return members("move", path(move), "after", after(move.position()));
    }
    if (change instanceof TableChange.UpdateColumnComment comment) {
      return members("comment", path(comment), "value", comment.newComment());
    }
    if (change instanceof TableChange.UpdateColumnNullability update && update.nullable()) {
      return members("nullable", path(update));
    }
    if (change instanceof TableChange.UpdateColumnDefaultValue update) {
      if (update.newDefaultValue() != null && !update.newDefaultValue().isEmpty()) {
        throw noDefault(update);
      }
      return null;
    }
    if (change instanceof TableChange.AddConstraint || change instanceof TableChange.DropConstraint) {
      throw Errors.mistake(
          "ALTER TABLE changes no constraints: CREATE TABLE sets the PRIMARY KEY for good, and a lake's tables have no others.");
    }
    throw Errors.mistake(
        "ALTER TABLE cannot do this here (" + change.getClass().getSimpleName() + "): set properties and comments, or add,"
            + " drop, rename, widen or move columns.");
  }

  private static RuntimeException noDefault(TableChange.ColumnChange column) {
    return Errors.mistake(
        "The column " + name(column) + " cannot have a DEFAULT, which tables of a lake do not store: leave it out, and give"
            + " the value in each INSERT.");
  }

  private static String name(TableChange.ColumnChange change) {
    return String.join(".", change.fieldNames());
  }

  /** The name of a column, or the path of a field inside one. */
  private static Object path(TableChange.ColumnChange change) {
    String[] names = change.fieldNames();
    return names.length == 1 ? names[0] : List.of(names);
  }

  /** The column before a position; empty: none, it is the first; null: not given. */
  private static String after(TableChange.ColumnPosition position) {
    return position == null ? null : position instanceof TableChange.After after ? after.column() : "";
  }

  private static Map<String, Object> members(String kind, Object name, String... more) {
    Map<String, Object> members = new LinkedHashMap<>();
    members.put("kind", kind);
    members.put("name", name);
    for (int i = 0; i < more.length; i += 2) {
      if (more[i + 1] != null) {
        members.put(more[i], more[i + 1]);
      }
    }
    return members;
  }
}
