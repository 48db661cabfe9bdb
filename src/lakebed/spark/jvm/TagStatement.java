package org.lakebed.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.parser.ParseException;

/**
 * A statement about versions of a table: {@code ALTER TABLE t CREATE TAG x}, {@code SHOW TAGS t}, {@code DESCRIBE
 * HISTORY t}.
 *
 * @param text the statement as written.
 * @param table its name as written.
 * @param change what ALTER TABLE does, as written; null: another statement.
 * @param system the system table that SHOW or DESCRIBE HISTORY reads; null: ALTER TABLE.
 */
record TagStatement(String text, String table, String change, String system) {
  private static final String PART = "(?:`(?:[^`]|``)+`|\\w+)";
  private static final String TABLE = "(" + PART + "(?:\\s*\\.\\s*" + PART + ")*)";
  private static final Pattern COMMENT = pattern("(?:\\s++|--[^\\n]*+\\n|/\\*.*?\\*/)");
  private static final Pattern ALTER =
      pattern(
          "ALTER TABLE " + TABLE
              + " ((?:CREATE|CREATE OR REPLACE|REPLACE|DELETE|DROP|RENAME) (?:TAG|BRANCH)\\b.*?)[;\\s]*");
  private static final Pattern SHOW = pattern("SHOW (TAGS|BRANCHES) (?:(?:FROM|IN) )?" + TABLE + "[;\\s]*");
  private static final Pattern HISTORY = pattern("DESC(?:RIBE)? HISTORY " + TABLE + "[;\\s]*");
  private static final Pattern EXPLAIN =
      pattern("(EXPLAIN (?:(?:LOGICAL|FORMATTED|EXTENDED|CODEGEN|COST) )?)(.*)");
  private static final Pattern SCRIPT = pattern("(?:\\w+\\s*:\\s*)?BEGIN\\b.*");
  private static final Pattern TOKEN =
      pattern(
          "'[^'\\\\]*+(?:\\\\.[^'\\\\]*+)*+'|\"[^\"\\\\]*+(?:\\\\.[^\"\\\\]*+)*+\"|`[^`]*`|--[^\\n]*|/\\*.*?\\*/|;|\\w+|.");

  /** Words of a script after which a statement begins. */
  private static final Set<String> OPENINGS = Set.of("BEGIN", "ATOMIC", "THEN", "ELSE", "DO", "LOOP", "REPEAT");

  private static final String MARKER = "|:\\w+|\\?)";
  private static final String NAME = ">`(?:[^`]|``)+`|'[^'\\\\]+'|\\w+" + MARKER;
  private static final String VERSION = "(?: AS OF VERSION (?<snapshot>\\d+" + MARKER + ")?";
  private static final String RETAIN = "(?: RETAIN (?<timeRetained>\\d+\\s*[a-z]+" + MARKER + ")?";
  private static final List<Form> FORMS =
      List.of(
          new Form(
              "create_tag",
              "CREATE(?: TAG|(?<orReplace> OR REPLACE) TAG| TAG(?<ifNotExists> IF NOT EXISTS)) (?<tag" + NAME + VERSION
                  + RETAIN),
          new Form("replace_tag", "REPLACE TAG (?<tag" + NAME + VERSION + RETAIN),
          new Form("rename_tag", "RENAME TAG (?<tag" + NAME + " TO (?<targetTag" + NAME),
          new Form("delete_tag", "(?:DROP|DELETE) TAG(?<ifExists> IF EXISTS)? (?<tag" + NAME),
          new Form("create_branch", "CREATE BRANCH (?<branch" + NAME + "(?:" + VERSION + "| AS OF TAG (?<tag" + NAME + ")"),
          new Form("delete_branch", "(?:DROP|DELETE) BRANCH (?<branch" + NAME));

  /** Returns the SQL that replaces a statement. */
  interface Translation {
    String of(TagStatement statement) throws ParseException;
  }

  /** A form of ALTER TABLE. Its groups are arguments of the procedure that it calls, named in Java's style. */
  private record Form(String procedure, Pattern pattern, List<String> groups) {
    Form(String procedure, String pattern) {
      this(
          procedure, TagStatement.pattern(pattern),
          Pattern.compile("\\?<([a-zA-Z]+)>").matcher(pattern).results().map(group -> group.group(1)).toList());
    }
  }

  /** A pattern in which a space is any white space. */
  private static Pattern pattern(String text) {
    return Pattern.compile(text.replace(" ", "\\s+"), Pattern.CASE_INSENSITIVE | Pattern.DOTALL);
  }

  /**
   * A text in which the CALL or the query from {@code sql} replaces each such statement: the whole text, the statement
   * that EXPLAIN explains, and the statements of a script.
   */
  static String replaced(String text, Translation sql) throws ParseException {
    TagStatement whole = of(text);
    if (whole != null) {
      return sql.of(whole);
    }
    String bare = withoutComments(text);
    Matcher explain = EXPLAIN.matcher(bare);
    if (explain.matches()) {
      TagStatement explained = of(explain.group(2));
      return explained == null ? text : explain.group(1) + sql.of(explained);
    }
    return SCRIPT.matcher(bare).matches() ? script(text, sql) : text;
  }

  private static String script(String text, Translation sql) throws ParseException {
    StringBuilder result = new StringBuilder();
    List<Integer> starts = new ArrayList<>();
    int copied = 0;
    for (Matcher token = TOKEN.matcher(text); token.find(); ) {
      if (OPENINGS.contains(token.group().toUpperCase(Locale.ROOT))) {
        starts.add(token.end());
      } else if (token.group().equals(";")) {
        for (int start : starts) { // such a word may also be a name
          TagStatement statement = of(text.substring(start, token.start()));
          if (statement != null) {
            result.append(text, copied, start).append(' ').append(sql.of(statement));
            copied = token.start();
            break;
          }
        }
        starts = new ArrayList<>(List.of(token.end()));
      }
    }
    return result.append(text, copied, text.length()).toString();
  }

  /** Parse a text as such a statement; null: it is another one. */
  static TagStatement of(String written) {
    String text = withoutComments(written);
    Matcher alter = ALTER.matcher(text);
    if (alter.matches()) {
      return new TagStatement(text, alter.group(1), alter.group(2), null);
    }
    Matcher history = HISTORY.matcher(text);
    if (history.matches()) {
      return new TagStatement(text, history.group(1), null, "snapshots");
    }
    Matcher show = SHOW.matcher(text);
    return show.matches() ? new TagStatement(text, show.group(2), null, show.group(1).toLowerCase(Locale.ROOT)) : null;
  }

  /** A text from its first word on. */
  private static String withoutComments(String text) {
    Matcher comment = COMMENT.matcher(text);
    int start = 0;
    while (comment.region(start, text.length()).lookingAt()) {
      start = comment.end();
    }
    return text.substring(start);
  }

  /** The CALL or the query of the same meaning. {@code parts}: the table's name without the catalog. */
  String sql(String catalog, String[] parts) {
    if (system != null) {
      parts[parts.length - 1] += "$" + system;
      String newestFirst = system.equals("snapshots") ? " ORDER BY snapshot_id DESC" : "";
      return "SELECT * FROM " + quoted(catalog) + "." + quoted(parts) + newestFirst;
    }
    for (Form form : FORMS) {
      Matcher found = form.pattern().matcher(change);
      if (found.matches()) {
        List<String> arguments = new ArrayList<>(List.of("table => " + literal(quoted(catalog) + "." + quoted(parts))));
        for (String group : form.groups()) {
          if (found.group(group) != null) {
            String name = group.replaceAll("([A-Z])", "_$1").toLowerCase(Locale.ROOT);
            arguments.add(name + " => " + value(group, found.group(group)));
          }
        }
        return "CALL " + quoted(catalog) + ".sys." + form.procedure() + "(" + String.join(", ", arguments) + ")";
      }
    }
    throw Errors.mistake(
        "ALTER TABLE " + table + " " + change + " is not a statement: write CREATE [OR REPLACE] TAG [IF NOT EXISTS] x"
            + " [AS OF VERSION 3] [RETAIN 30 DAYS], REPLACE TAG x [AS OF VERSION 3] [RETAIN 30 DAYS], RENAME TAG x TO y,"
            + " DROP TAG [IF EXISTS] x, CREATE BRANCH x [AS OF VERSION 3 | AS OF TAG y] or DROP BRANCH x, with backquotes"
            + " around names that have other characters than letters, digits and _, or with parameters like :x.");
  }

  private static String value(String group, String written) {
    if (written.startsWith(":") || written.equals("?")) {
      return written; // a parameter of the statement becomes one of the CALL
    }
    return switch (group) {
      case "orReplace", "ifNotExists", "ifExists" -> "true";
      case "snapshot" -> written + "L";
      case "timeRetained" -> literal(written.toLowerCase(Locale.ROOT));
      default -> {
        boolean plain = !written.startsWith("`") && !written.startsWith("'");
        yield literal(plain ? written : written.substring(1, written.length() - 1).replace("``", "`"));
      }
    };
  }

  private static String literal(String text) {
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'";
  }

  private static String quoted(String... parts) {
    return "`" + String.join("`.`", List.of(parts).stream().map(part -> part.replace("`", "``")).toList()) + "`";
  }
}
