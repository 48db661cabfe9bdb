import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.paimon.Snapshot;
import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.deletionvectors.Bitmap64DeletionVector;
import org.apache.paimon.deletionvectors.BitmapDeletionVector;
import org.apache.paimon.deletionvectors.DeletionVector;
import org.apache.paimon.deletionvectors.append.BaseAppendDeleteFileMaintainer;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.index.HashBucketAssigner;
import org.apache.paimon.index.IndexFileHandler;
import org.apache.paimon.index.IndexFileMeta;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileKind;
import org.apache.paimon.manifest.IndexManifestEntry;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.DataTable;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.RowKeyExtractor;
import org.apache.paimon.table.sink.StreamTableCommit;
import org.apache.paimon.table.sink.StreamTableWrite;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.table.source.StreamTableScan;
import org.apache.paimon.table.source.TableRead;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.types.RowType;

/** Tables and their rows: create, write, compact, read. */
final class Rows {
    private Rows() {}

    static void register(Map<String, Worker.Verb> verbs) {
        verbs.put("create", Rows::create);
        verbs.put("write", Rows::write);
        verbs.put("compact", Rows::compact);
        verbs.put("mark", Rows::mark);
        verbs.put("read", Rows::read);
        verbs.put("find", Rows::find);
        verbs.put("follow", Rows::follow);
        verbs.put("truncate", Rows::truncate);
        verbs.put("drop_partitions", Rows::dropPartitions);
    }

    /** columns [{name, type}], primary_keys, partition_keys, options. */
    private static Object create(JsonNode request) throws Exception {
        Catalog catalog = Tables.catalog(request);
        catalog.createDatabase(Tables.name(request).getDatabaseName(), true);
        Schema.Builder schema = Schema.newBuilder();
        for (JsonNode column : request.get("columns")) {
            schema.column(column.get("name").textValue(), Values.type(column.get("type")));
        }
        schema.primaryKey(Tables.list(request.get("primary_keys")));
        schema.partitionKeys(Tables.list(request.get("partition_keys")));
        schema.options(Tables.map(request.get("options")));
        catalog.createTable(Tables.name(request), schema.build(), false);
        return null;
    }

    /**
     * rows (lists of values in the table's column order), kinds ("+I", "-D", ... one a row; all +I without), overwrite
     * (a partition, maybe empty), wait_compaction. Commits once; the number of rows.
     */
    private static Object write(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        if (Tables.has(request, "overwrite")) {
            BatchWriteBuilder builder = table.newBatchWriteBuilder().withOverwrite(Tables.map(request.get("overwrite")));
            try (IOManager files = temporary(); // closed after the compactions of the writer
                    TableWriteImpl<?> write = (TableWriteImpl<?>) builder.newWrite();
                    BatchTableCommit commit = builder.newCommit()) {
                write.withIOManager(files);
                writeRows(table, write, request, true, "overwrite");
                commit.commit(write.prepareCommit());
            }
            return request.get("rows").size();
        }
        String user = UUID.randomUUID().toString();
        try (IOManager files = temporary();
                TableWriteImpl<?> write = table.newWrite(user);
                StreamTableCommit commit = table.newCommit(user)) {
            write.withIOManager(files);
            writeRows(table, write, request, false, user);
            boolean wait = Tables.has(request, "wait_compaction") && request.get("wait_compaction").booleanValue();
            commit.commit(1L, ((StreamTableWrite) write).prepareCommit(wait, 1L));
        }
        return request.get("rows").size();
    }

    private static void writeRows(
            FileStoreTable table, TableWriteImpl<?> write, JsonNode request, boolean overwrite, String user)
            throws Exception {
        RowType type = table.rowType();
        boolean dynamic = table.bucketMode() == BucketMode.HASH_DYNAMIC;
        Assigner assigner = dynamic ? new Assigner(table, user, overwrite) : null;
        JsonNode kinds = request.get("kinds");
        int index = 0;
        for (JsonNode values : request.get("rows")) {
            GenericRow row = Values.row(values, type);
            if (kinds != null && !kinds.isNull()) {
                row.setRowKind(RowKind.fromShortString(kinds.get(index).textValue()));
            }
            if (dynamic) {
                write.write(row, assigner.bucket(row));
            } else {
                write.write(row);
            }
            index++;
        }
    }

    /** The bucket of each row in dynamic bucket mode; one assigner for all. */
    private static final class Assigner {
        private final RowKeyExtractor extractor;
        private final org.apache.paimon.index.BucketAssigner assigner;

        Assigner(FileStoreTable table, String user, boolean overwrite) {
            extractor = table.createRowKeyExtractor();
            org.apache.paimon.CoreOptions options = table.coreOptions();
            int max = options.dynamicBucketMaxBuckets() == null ? -1 : options.dynamicBucketMaxBuckets();
            assigner = overwrite
                    ? new org.apache.paimon.index.SimpleHashBucketAssigner(
                            1, 0, options.dynamicBucketTargetRowNum(), max)
                    : new HashBucketAssigner(
                            table.snapshotManager(),
                            user,
                            table.store().newIndexFileHandler(),
                            1,
                            1,
                            0,
                            options.dynamicBucketTargetRowNum(),
                            max);
        }

        int bucket(InternalRow row) {
            extractor.setRecord(row);
            return assigner.assign(extractor.partition(), extractor.trimmedPrimaryKey().hashCode());
        }
    }

    /** Makes a folder of its own, which it deletes when it is closed. */
    private static IOManager temporary() {
        return IOManager.create(System.getProperty("java.io.tmpdir"));
    }

    /** full (default true): every bucket of every partition; the number of files compacted away. */
    private static Object compact(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        boolean full = !Tables.has(request, "full") || request.get("full").booleanValue();
        String user = UUID.randomUUID().toString();
        List<CommitMessage> messages = new ArrayList<>();
        try (IOManager files = temporary();
                TableWriteImpl<?> write = table.newWrite(user);
                StreamTableCommit commit = table.newCommit(user)) {
            write.withIOManager(files);
            if (table.primaryKeys().isEmpty() && table.bucketMode() == BucketMode.BUCKET_UNAWARE) {
                BaseAppendFileStoreWrite store =
                        (BaseAppendFileStoreWrite) ((TableWriteImpl<?>) write).fileStoreWrite();
                for (AppendCompactTask task : new AppendCompactCoordinator(table, false).run()) {
                    messages.add(task.doCompact(table, store));
                }
            } else {
                Map<BinaryRow, Set<Integer>> buckets = new HashMap<>();
                for (Split split : table.newReadBuilder().newScan().plan().splits()) {
                    DataSplit part = (DataSplit) split;
                    if (buckets.computeIfAbsent(part.partition(), p -> new HashSet<>()).add(part.bucket())) {
                        write.compact(part.partition(), part.bucket(), full);
                    }
                }
                messages.addAll(((StreamTableWrite) write).prepareCommit(true, 1L));
            }
            if (!messages.isEmpty()) {
                commit.commit(1L, messages);
            }
        }
        return messages.size();
    }

    /** positions ({data file name: [row numbers]}) of a table without a primary key: deletion vectors, in one commit. */
    private static Object mark(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        Snapshot newest = table.snapshotManager().latestSnapshot();
        IndexFileHandler handler = table.store().newIndexFileHandler();
        boolean wide = table.coreOptions().deletionVectorBitmap64();
        Map<BinaryRow, Map<Integer, BaseAppendDeleteFileMaintainer>> maintainers = new HashMap<>();
        for (Split split : table.newReadBuilder().newScan().plan().splits()) {
            DataSplit part = (DataSplit) split;
            for (DataFileMeta file : part.dataFiles()) {
                JsonNode positions = request.get("positions").get(file.fileName());
                if (positions == null) {
                    continue;
                }
                DeletionVector vector = wide ? new Bitmap64DeletionVector() : new BitmapDeletionVector();
                positions.forEach(position -> vector.delete(position.longValue()));
                maintainers
                        .computeIfAbsent(part.partition(), p -> new HashMap<>())
                        .computeIfAbsent(part.bucket(), bucket -> table.bucketMode() == BucketMode.BUCKET_UNAWARE
                                ? BaseAppendDeleteFileMaintainer.forUnawareAppend(handler, newest, part.partition())
                                : BaseAppendDeleteFileMaintainer.forBucketedAppend(
                                        handler, newest, part.partition(), bucket))
                        .notifyNewDeletionVector(file.fileName(), vector);
            }
        }
        List<CommitMessage> messages = new ArrayList<>();
        for (Map<Integer, BaseAppendDeleteFileMaintainer> buckets : maintainers.values()) {
            for (BaseAppendDeleteFileMaintainer maintainer : buckets.values()) {
                List<IndexFileMeta> added = new ArrayList<>();
                List<IndexFileMeta> deleted = new ArrayList<>();
                for (IndexManifestEntry entry : maintainer.persist()) {
                    (entry.kind() == FileKind.ADD ? added : deleted).add(entry.indexFile());
                }
                messages.add(new CommitMessageImpl(
                        maintainer.getPartition(),
                        maintainer.getBucket(),
                        table.coreOptions().bucket(),
                        new DataIncrement(List.of(), List.of(), List.of(), added, deleted),
                        CompactIncrement.emptyIncrement()));
            }
        }
        try (BatchTableCommit commit = table.newBatchWriteBuilder().newCommit()) {
            commit.commit(messages);
        }
        return messages.size();
    }

    /** where (a filter), columns, execute_filter (default true), kinds (default false): {columns, rows, kinds}. */
    private static Object read(JsonNode request) throws Exception {
        Table table = Tables.table(request);
        ReadBuilder builder = table.newReadBuilder();
        boolean filtered = Tables.has(request, "where");
        if (filtered) {
            Predicate predicate = new Filters(table.rowType()).parse(request.get("where"));
            builder.withFilter(predicate);
        }
        if (Tables.has(request, "columns")) {
            builder.withProjection(Tables.list(request.get("columns")).stream()
                    .mapToInt(name -> table.rowType().getFieldIndex(name))
                    .toArray());
        }
        RowType type = builder.readType();
        ObjectNode answer = Values.JSON.createObjectNode();
        answer.set("columns", Values.columns(type));
        ArrayNode rows = answer.putArray("rows");
        ArrayNode kinds = answer.putArray("kinds");
        List<Split> splits = builder.newScan().plan().splits();
        TableRead reads = builder.newRead();
        if (filtered && (!Tables.has(request, "execute_filter") || request.get("execute_filter").booleanValue())) {
            reads = reads.executeFilter();
        }
        try (IOManager files = temporary()) {
            reads = reads.withIOManager(files);
            for (Split split : splits) {
                try (RecordReader<InternalRow> reader = reads.createReader(split)) {
                    reader.forEachRemaining(row -> {
                        rows.add(Values.encode(row, type));
                        kinds.add(row.getRowKind().shortString());
                    });
                }
            }
        }
        return answer;
    }

    /** The rows of a stream from its start to the newest snapshot, as of read: {columns, rows, kinds}. */
    private static Object follow(JsonNode request) throws Exception {
        Table table = Tables.table(request);
        ReadBuilder builder = table.newReadBuilder();
        RowType type = builder.readType();
        ObjectNode answer = Values.JSON.createObjectNode();
        answer.set("columns", Values.columns(type));
        ArrayNode rows = answer.putArray("rows");
        ArrayNode kinds = answer.putArray("kinds");
        StreamTableScan scan = builder.newStreamScan();
        Long newest = ((DataTable) table).snapshotManager().latestSnapshotId();
        TableRead reads = builder.newRead();
        try (IOManager files = temporary()) {
            reads = reads.withIOManager(files);
            while (newest != null && (scan.checkpoint() == null || scan.checkpoint() <= newest)) {
                for (Split split : scan.plan().splits()) {
                    try (RecordReader<InternalRow> reader = reads.createReader(split)) {
                        reader.forEachRemaining(row -> {
                            rows.add(Values.encode(row, type));
                            kinds.add(row.getRowKind().shortString());
                        });
                    }
                }
            }
        }
        return answer;
    }

    /** wheres (plain filters), column (whole numbers), execute_filter: for each filter the numbers of the rows found. */
    private static Object find(JsonNode request) throws Exception {
        Table table = Tables.table(request);
        Filters filters = new Filters(table.rowType());
        int column = table.rowType().getFieldIndex(request.get("column").textValue());
        if (column < 0) {
            throw new IllegalArgumentException("no column " + request.get("column"));
        }
        boolean execute = !Tables.has(request, "execute_filter") || request.get("execute_filter").booleanValue();
        ArrayNode answer = Values.JSON.createArrayNode();
        for (JsonNode where : request.get("wheres")) {
            int filtered = table.rowType().getFieldIndex(where.get("column").textValue());
            ReadBuilder builder = table.newReadBuilder()
                    .withFilter(filters.parse(where))
                    .withProjection(filtered == column ? new int[] {column} : new int[] {column, filtered});
            TableRead reads = execute ? builder.newRead().executeFilter() : builder.newRead();
            ArrayNode found = answer.addArray();
            try (RecordReader<InternalRow> reader = reads.createReader(builder.newScan().plan())) {
                reader.forEachRemaining(row -> found.add(row.getLong(0)));
            }
        }
        return answer;
    }

    private static Object truncate(JsonNode request) throws Exception {
        try (BatchTableCommit commit = Tables.table(request).newBatchWriteBuilder().newCommit()) {
            commit.truncateTable();
        }
        return null;
    }

    /** partitions: a list of {column: text}. */
    private static Object dropPartitions(JsonNode request) throws Exception {
        List<Map<String, String>> partitions = new ArrayList<>();
        request.get("partitions").forEach(partition -> partitions.add(Tables.map(partition)));
        try (BatchTableCommit commit = Tables.table(request).newBatchWriteBuilder().newCommit()) {
            commit.truncatePartitions(partitions);
        }
        return null;
    }
}
