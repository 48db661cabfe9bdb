import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.options.Options;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.Table;

/** The catalog, the table and the plain words of a request. */
final class Tables {
    private Tables() {}

    /** A catalog without caches: another client changes what is behind it. "catalog" has further options of it. */
    static Catalog catalog(JsonNode request) {
        Options options = new Options();
        options.set("warehouse", request.get("warehouse").textValue());
        options.set("cache-enabled", "false");
        map(request.get("catalog")).forEach(options::set);
        return CatalogFactory.createCatalog(CatalogContext.create(options));
    }

    static Identifier name(JsonNode request) {
        String full = request.get("table").textValue();
        int dot = full.lastIndexOf('.'); // the name of a database may have dots: repository.branch
        return Identifier.create(full.substring(0, dot), full.substring(dot + 1));
    }

    /** Any table, a system table too, at the request's branch and with its dynamic options. */
    static Table table(JsonNode request) throws Exception {
        Identifier name = name(request);
        String branch = text(request, "branch");
        if (branch != null) {
            name = new Identifier(name.getDatabaseName(), name.getTableName(), branch, name.getSystemTableName());
        }
        Table table = catalog(request).getTable(name);
        Map<String, String> options = map(request.get("options"));
        return options.isEmpty() ? table : table.copy(options);
    }

    static FileStoreTable store(JsonNode request) throws Exception {
        return (FileStoreTable) table(request);
    }

    static boolean has(JsonNode request, String word) {
        return request.has(word) && !request.get(word).isNull();
    }

    static String text(JsonNode request, String word) {
        return has(request, word) ? request.get(word).asText() : null;
    }

    static Map<String, String> map(JsonNode node) {
        Map<String, String> map = new HashMap<>();
        if (node != null && !node.isNull()) {
            node.fields().forEachRemaining(e -> map.put(e.getKey(), e.getValue().isNull() ? null : e.getValue().asText()));
        }
        return map;
    }

    static List<String> list(JsonNode node) {
        List<String> list = new ArrayList<>();
        if (node != null && !node.isNull()) {
            node.forEach(item -> list.add(item.textValue()));
        }
        return list;
    }
}
