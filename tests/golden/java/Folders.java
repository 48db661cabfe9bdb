import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import org.apache.paimon.CoreOptions;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.data.serializer.InternalRowSerializer;
import org.apache.paimon.fs.Path;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypeJsonParser;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.FileStorePathFactory;

/** The folders that Paimon computes for the cases of write.py: args are the file of cases and the file to write. */
public class Folders {
    static String text(String field) {
        return field.equals("\\N") ? null : new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    }

    static Object value(DataType type, String text) {
        if (text == null) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case CHAR:
            case VARCHAR:
                return BinaryString.fromString(text);
            case BOOLEAN:
                return Boolean.valueOf(text);
            case TINYINT:
                return Byte.valueOf(text);
            case SMALLINT:
                return Short.valueOf(text);
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
                return Integer.valueOf(text);
            case BIGINT:
                return Long.valueOf(text);
            case FLOAT:
                return Float.intBitsToFloat(Integer.parseInt(text));
            case DOUBLE:
                return Double.longBitsToDouble(Long.parseUnsignedLong(text));
            case DECIMAL:
                DecimalType decimal = (DecimalType) type;
                return Decimal.fromBigDecimal(new BigDecimal(text), decimal.getPrecision(), decimal.getScale());
            default:
                String[] parts = text.split("\\+");
                return Timestamp.fromEpochMillis(Long.parseLong(parts[0]), Integer.parseInt(parts[1]));
        }
    }

    public static void main(String[] args) throws Exception {
        List<String> folders = new ArrayList<>();
        for (String line : Files.readAllLines(Paths.get(args[0]))) {
            String[] fields = line.split("\t", -1);
            DataType type = DataTypeJsonParser.parseAtomicTypeSQLString(fields[0].replace("_LTZ", "").replaceAll("^(TIMESTAMP.*)$", fields[0].contains("_LTZ") ? "$1 WITH LOCAL TIME ZONE" : "$1"));
            RowType row = RowType.of(new DataType[] {type, DataTypes.INT()}, new String[] {text(fields[6]), "k"});
            BinaryRow partition = new InternalRowSerializer(row).toBinaryRow(GenericRow.of(value(type, text(fields[1])), 7));
            FileStorePathFactory factory =
                    new FileStorePathFactory(
                            new Path("/t"), row, text(fields[3]), "parquet", "data-", "changelog-",
                            Boolean.parseBoolean(fields[2]), false, "zstd", text(fields[4]), Collections.emptyList(),
                            CoreOptions.ExternalPathStrategy.NONE, null, false, null);
            folders.add(factory.bucketPath(partition, Integer.parseInt(fields[5])).toString().substring("/t/".length()));
        }
        Files.write(Paths.get(args[1]), folders, StandardCharsets.UTF_8);
    }
}
