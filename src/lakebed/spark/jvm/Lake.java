package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.LinkedHashMap;
import java.util.Map;

/** A lake, as a catalog sends requests about it. */
final class Lake {
  final String url;

  /** The interpreter in the settings; null: each machine uses its own. */
  final String python;

  /** What USING may name besides lakebed's own words, and what tables show as theirs; null: nothing. */
  final String provider;

  private final long seconds;

  Lake(String url, String python, String provider, long seconds) {
    this.url = url;
    this.python = python;
    this.provider = provider;
    this.seconds = seconds;
  }

  /** Send a request that changes nothing. */
  JsonNode ask(String verb, Object... body) {
    try {
      return find(verb, body);
    } catch (Errors.Refused e) {
      throw e.mistake();
    }
  }

  /** Send a request for a change. It is never sent twice. */
  JsonNode change(String verb, Object... body) {
    try {
      return changeTable(verb, body);
    } catch (Errors.Refused e) {
      throw e.mistake();
    }
  }

  /** As {@link #ask}, for a method for which Spark has a separate exception for a missing table. */
  JsonNode find(String verb, Object... body) throws Errors.Refused {
    return Bridge.of(Python.orDefault(python)).ask(verb, url, members(body), seconds, true);
  }

  /** As {@link #change}, for a method for which Spark has a separate exception for an existing or missing table. */
  JsonNode changeTable(String verb, Object... body) throws Errors.Refused {
    Map<String, Object> members = members(body);
    try {
      return Bridge.of(Python.orDefault(python)).ask(verb, url, members, seconds, false);
    } finally { // also after an error, because the change may have happened
      CachedTables.refresh(table(members));
    }
  }

  /** The table that is changed. A procedure has it among its arguments. */
  private static String table(Map<String, Object> members) {
    Map<?, ?> named = members.get("arguments") instanceof Map<?, ?> arguments ? arguments : members;
    return String.valueOf(named.get("table"));
  }

  private static Map<String, Object> members(Object... body) {
    Map<String, Object> members = new LinkedHashMap<>();
    for (int i = 0; i < body.length; i += 2) {
      if (body[i + 1] != null) {
        members.put((String) body[i], body[i + 1]);
      }
    }
    return members;
  }
}
