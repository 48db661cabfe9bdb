import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.GenericArray;
import org.apache.paimon.data.GenericMap;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalMap;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.data.variant.GenericVariant;
import org.apache.paimon.data.variant.Variant;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypeJsonParser;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.MapType;
import org.apache.paimon.types.MultisetType;
import org.apache.paimon.types.RowType;

/**
 * Values of the format as JSON, without loss.
 *
 * <p>BOOLEAN and the integers, DATE (days) and TIME (milliseconds) are JSON's own. FLOAT, DOUBLE and DECIMAL are text,
 * so that NaN, -0.0 and every digit survive. TIMESTAMP is the text of its nanoseconds since 1970. BINARY and VARBINARY
 * are hexadecimal. ARRAY and ROW are lists, MAP and MULTISET lists of pairs.
 */
final class Values {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final BigInteger NANOS_A_MILLI = BigInteger.valueOf(1_000_000);

    private Values() {}

    static DataType type(JsonNode node) {
        return DataTypeJsonParser.parseDataType(node, new AtomicInteger(1000));
    }

    static JsonNode describe(DataType type) throws Exception {
        return JSON.readTree(org.apache.paimon.utils.JsonSerdeUtil.toFlatJson(type));
    }

    static Object decode(JsonNode value, DataType type) {
        if (value == null || value.isNull()) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return value.booleanValue();
            case TINYINT:
                return (byte) value.intValue();
            case SMALLINT:
                return (short) value.intValue();
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
                return value.intValue();
            case BIGINT:
                return value.longValue();
            case FLOAT:
                return Float.parseFloat(value.textValue());
            case DOUBLE:
                return Double.parseDouble(value.textValue());
            case DECIMAL:
                DecimalType decimal = (DecimalType) type;
                return Decimal.fromBigDecimal(
                        new BigDecimal(value.textValue()), decimal.getPrecision(), decimal.getScale());
            case CHAR:
            case VARCHAR:
                return BinaryString.fromString(value.textValue());
            case BINARY:
            case VARBINARY:
                return HexFormat.of().parseHex(value.textValue());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return timestamp(new BigInteger(value.textValue()));
            case VARIANT:
                return GenericVariant.fromJson(value.textValue());
            case ARRAY:
                return array(value, ((ArrayType) type).getElementType());
            case MAP:
                return map(value, ((MapType) type).getKeyType(), ((MapType) type).getValueType());
            case MULTISET:
                return map(value, ((MultisetType) type).getElementType(), DataTypes.INT());
            case ROW:
                return row(value, (RowType) type);
            default:
                throw new IllegalArgumentException("the worker has no JSON for " + type);
        }
    }

    private static Timestamp timestamp(BigInteger nanos) {
        BigInteger rest = nanos.mod(NANOS_A_MILLI);
        return Timestamp.fromEpochMillis(
                nanos.subtract(rest).divide(NANOS_A_MILLI).longValueExact(), rest.intValueExact());
    }

    private static GenericArray array(JsonNode value, DataType element) {
        Object[] items = new Object[value.size()];
        for (int i = 0; i < items.length; i++) {
            items[i] = decode(value.get(i), element);
        }
        return new GenericArray(items);
    }

    private static GenericMap map(JsonNode value, DataType keys, DataType values) {
        Map<Object, Object> map = new LinkedHashMap<>();
        for (JsonNode pair : value) {
            map.put(decode(pair.get(0), keys), decode(pair.get(1), values));
        }
        return new GenericMap(map);
    }

    static GenericRow row(JsonNode value, RowType type) {
        GenericRow row = new GenericRow(type.getFieldCount());
        for (int i = 0; i < type.getFieldCount(); i++) {
            row.setField(i, decode(value.get(i), type.getTypeAt(i)));
        }
        return row;
    }

    static ArrayNode encode(InternalRow row, RowType type) {
        ArrayNode values = JSON.createArrayNode();
        for (int i = 0; i < type.getFieldCount(); i++) {
            Object value = InternalRow.createFieldGetter(type.getTypeAt(i), i).getFieldOrNull(row);
            values.add(encode(value, type.getTypeAt(i)));
        }
        return values;
    }

    private static JsonNode encode(Object value, DataType type) {
        if (value == null) {
            return JSON.nullNode();
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
            case TINYINT:
            case SMALLINT:
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
            case BIGINT:
                return JSON.valueToTree(value);
            case DECIMAL:
                return JSON.getNodeFactory().textNode(((Decimal) value).toBigDecimal().toPlainString());
            case BINARY:
            case VARBINARY:
                return JSON.getNodeFactory().textNode(HexFormat.of().formatHex((byte[]) value));
            case TIMESTAMP_WITHOUT_TIME_ZONE:
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                Timestamp timestamp = (Timestamp) value;
                return JSON.getNodeFactory()
                        .textNode(BigInteger.valueOf(timestamp.getMillisecond())
                                .multiply(NANOS_A_MILLI)
                                .add(BigInteger.valueOf(timestamp.getNanoOfMillisecond()))
                                .toString());
            case VARIANT:
                return JSON.getNodeFactory().textNode(((Variant) value).toJson());
            case ARRAY:
                return items((InternalArray) value, ((ArrayType) type).getElementType());
            case MAP:
                return pairs((InternalMap) value, ((MapType) type).getKeyType(), ((MapType) type).getValueType());
            case MULTISET:
                return pairs((InternalMap) value, ((MultisetType) type).getElementType(), DataTypes.INT());
            case ROW:
                return encode((InternalRow) value, (RowType) type);
            default:
                return JSON.getNodeFactory().textNode(value.toString());
        }
    }

    private static ArrayNode items(InternalArray array, DataType element) {
        ArrayNode items = JSON.createArrayNode();
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(element);
        for (int i = 0; i < array.size(); i++) {
            items.add(encode(getter.getElementOrNull(array, i), element));
        }
        return items;
    }

    private static ArrayNode pairs(InternalMap map, DataType keys, DataType values) {
        ArrayNode pairs = JSON.createArrayNode();
        ArrayNode left = items(map.keyArray(), keys);
        ArrayNode right = items(map.valueArray(), values);
        for (int i = 0; i < left.size(); i++) {
            pairs.add(JSON.createArrayNode().add(left.get(i)).add(right.get(i)));
        }
        return pairs;
    }

    static ArrayNode columns(RowType type) throws Exception {
        ArrayNode columns = JSON.createArrayNode();
        for (DataField field : type.getFields()) {
            ObjectNode column = columns.addObject();
            column.put("name", field.name());
            column.set("type", describe(field.type()));
        }
        return columns;
    }
}
