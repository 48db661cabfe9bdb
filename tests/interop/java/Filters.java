import java.util.ArrayList;
import java.util.List;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.RowType;

/** Filters as JSON: {"and": [..]}, {"or": [..]}, {"not": filter} or {"op": name, "column": c, "value": v}. */
final class Filters {
    private final RowType type;
    private final PredicateBuilder builder;

    Filters(RowType type) {
        this.type = type;
        this.builder = new PredicateBuilder(type);
    }

    Predicate parse(JsonNode node) {
        if (node.has("and")) {
            return PredicateBuilder.and(all(node.get("and")));
        }
        if (node.has("or")) {
            return PredicateBuilder.or(all(node.get("or")));
        }
        if (node.has("not")) {
            return parse(node.get("not")).negate().orElseThrow();
        }
        return leaf(node);
    }

    private List<Predicate> all(JsonNode nodes) {
        List<Predicate> parts = new ArrayList<>();
        nodes.forEach(part -> parts.add(parse(part)));
        return parts;
    }

    private Predicate leaf(JsonNode node) {
        int column = builder.indexOf(node.get("column").textValue());
        if (column < 0) {
            throw new IllegalArgumentException("no column " + node.get("column"));
        }
        DataType of = type.getTypeAt(column);
        String op = node.get("op").textValue();
        if (op.equals("in") || op.equals("not in")) {
            List<Object> values = new ArrayList<>();
            node.get("value").forEach(value -> values.add(Values.decode(value, of)));
            return op.equals("in") ? builder.in(column, values) : builder.notIn(column, values);
        }
        if (op.equals("between")) {
            JsonNode bounds = node.get("value");
            return builder.between(column, Values.decode(bounds.get(0), of), Values.decode(bounds.get(1), of));
        }
        Object value = Values.decode(node.get("value"), of);
        switch (op) {
            case "=":
                return builder.equal(column, value);
            case "<>":
                return builder.notEqual(column, value);
            case "<":
                return builder.lessThan(column, value);
            case "<=":
                return builder.lessOrEqual(column, value);
            case ">":
                return builder.greaterThan(column, value);
            case ">=":
                return builder.greaterOrEqual(column, value);
            case "is null":
                return builder.isNull(column);
            case "is not null":
                return builder.isNotNull(column);
            case "starts with":
                return builder.startsWith(column, value);
            case "ends with":
                return builder.endsWith(column, value);
            case "contains":
                return builder.contains(column, value);
            case "like":
                return builder.like(column, value);
            default:
                throw new IllegalArgumentException("no filter " + op);
        }
    }
}
