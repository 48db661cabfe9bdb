import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.paimon.Snapshot;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.operation.CleanOrphanFilesResult;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.tag.TagTimeExpire;

/** Snapshots, tags, branches, schemas and cleaning. */
final class Upkeep {
    private Upkeep() {}

    static void register(Map<String, Worker.Verb> verbs) {
        verbs.put("snapshots", Upkeep::snapshots);
        verbs.put("files", Upkeep::files);
        verbs.put("schema", Upkeep::schema);
        verbs.put("alter", Upkeep::alter);
        verbs.put("drop_table", Upkeep::dropTable);
        verbs.put("create_tag", Upkeep::createTag);
        verbs.put("replace_tag", Upkeep::replaceTag);
        verbs.put("rename_tag", Upkeep::renameTag);
        verbs.put("delete_tag", Upkeep::deleteTag);
        verbs.put("list_tags", Upkeep::listTags);
        verbs.put("rollback", Upkeep::rollback);
        verbs.put("expire_snapshots", Upkeep::expireSnapshots);
        verbs.put("expire_tags", Upkeep::expireTags);
        verbs.put("expire_partitions", Upkeep::expirePartitions);
        verbs.put("remove_orphans", Upkeep::removeOrphans);
        verbs.put("compact_manifests", Upkeep::compactManifests);
        verbs.put("create_branch", Upkeep::createBranch);
        verbs.put("delete_branch", Upkeep::deleteBranch);
        verbs.put("rename_branch", Upkeep::renameBranch);
        verbs.put("fast_forward", Upkeep::fastForward);
        verbs.put("list_branches", Upkeep::listBranches);
    }

    /** Every snapshot, oldest first: {id, schema_id, kind, time_ms, rows}. */
    private static Object snapshots(JsonNode request) throws Exception {
        ArrayNode answer = Values.JSON.createArrayNode();
        Map<Long, Snapshot> sorted = new TreeMap<>();
        Iterator<Snapshot> found = Tables.store(request).snapshotManager().snapshots();
        found.forEachRemaining(snapshot -> sorted.put(snapshot.id(), snapshot));
        for (Snapshot snapshot : sorted.values()) {
            ObjectNode node = answer.addObject();
            node.put("id", snapshot.id());
            node.put("schema_id", snapshot.schemaId());
            node.put("kind", snapshot.commitKind().toString());
            node.put("time_ms", snapshot.timeMillis());
            node.put("rows", snapshot.totalRecordCount());
            node.put("index_manifest", snapshot.indexManifest());
        }
        return answer;
    }

    /** The live data files: {path, bucket, level, rows, partition}. */
    private static Object files(JsonNode request) throws Exception {
        ArrayNode answer = Values.JSON.createArrayNode();
        FileStoreTable table = Tables.store(request);
        for (Split split : table.newReadBuilder().newScan().plan().splits()) {
            DataSplit part = (DataSplit) split;
            part.dataFiles().forEach(file -> {
                ObjectNode node = answer.addObject();
                node.put("path", file.externalPath().orElse(part.bucketPath() + "/" + file.fileName()));
                node.put("bucket", part.bucket());
                node.put("level", file.level());
                node.put("rows", file.rowCount());
                node.put("partition", table.store().pathFactory().getPartitionString(part.partition()));
            });
        }
        return answer;
    }

    private static Object schema(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        ObjectNode answer = Values.JSON.createObjectNode();
        answer.put("id", table.schema().id());
        answer.set("columns", Values.columns(table.rowType()));
        answer.set("options", Values.JSON.valueToTree(table.options()));
        answer.set("primary_keys", Values.JSON.valueToTree(table.primaryKeys()));
        answer.set("partition_keys", Values.JSON.valueToTree(table.partitionKeys()));
        return answer;
    }

    /** changes: [{change: add|rename|drop|type|nullable|set|reset, column, to, type, option, value}]. */
    private static Object alter(JsonNode request) throws Exception {
        List<SchemaChange> changes = new ArrayList<>();
        for (JsonNode change : request.get("changes")) {
            String column = Tables.text(change, "column");
            switch (change.get("change").textValue()) {
                case "add":
                    changes.add(SchemaChange.addColumn(column, Values.type(change.get("type"))));
                    break;
                case "rename":
                    changes.add(SchemaChange.renameColumn(column, Tables.text(change, "to")));
                    break;
                case "drop":
                    changes.add(SchemaChange.dropColumn(column));
                    break;
                case "type":
                    changes.add(SchemaChange.updateColumnType(column, Values.type(change.get("type"))));
                    break;
                case "nullable":
                    changes.add(SchemaChange.updateColumnNullability(column, change.get("value").booleanValue()));
                    break;
                case "set":
                    changes.add(SchemaChange.setOption(Tables.text(change, "option"), Tables.text(change, "value")));
                    break;
                case "reset":
                    changes.add(SchemaChange.removeOption(Tables.text(change, "option")));
                    break;
                default:
                    throw new IllegalArgumentException("no change " + change);
            }
        }
        try (Catalog catalog = Tables.catalog(request)) {
            catalog.alterTable(Tables.name(request), changes, false);
        }
        return null;
    }

    private static Object dropTable(JsonNode request) throws Exception {
        try (Catalog catalog = Tables.catalog(request)) {
            catalog.dropTable(Tables.name(request), false);
        }
        return null;
    }

    private static Duration retained(JsonNode request) {
        return Tables.has(request, "retained_ms") ? Duration.ofMillis(request.get("retained_ms").longValue()) : null;
    }

    /** name, snapshot (the latest without), retained_ms. */
    private static Object createTag(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        String name = Tables.text(request, "name");
        if (Tables.has(request, "snapshot")) {
            table.createTag(name, request.get("snapshot").longValue(), retained(request));
        } else {
            table.createTag(name, retained(request));
        }
        return null;
    }

    private static Object replaceTag(JsonNode request) throws Exception {
        Long snapshot = Tables.has(request, "snapshot") ? request.get("snapshot").longValue() : null;
        Tables.store(request).replaceTag(Tables.text(request, "name"), snapshot, retained(request));
        return null;
    }

    private static Object renameTag(JsonNode request) throws Exception {
        Tables.store(request).renameTag(Tables.text(request, "name"), Tables.text(request, "to"));
        return null;
    }

    private static Object deleteTag(JsonNode request) throws Exception {
        Tables.store(request).deleteTag(Tables.text(request, "name"));
        return null;
    }

    /** Names to snapshot ids. */
    private static Object listTags(JsonNode request) throws Exception {
        Map<String, Long> names = new TreeMap<>();
        Tables.store(request)
                .tagManager()
                .tagObjects()
                .forEach(pair -> names.put(pair.getRight(), pair.getLeft().id()));
        return names;
    }

    /** One of snapshot, tag, timestamp_ms; the id of the snapshot that is newest then. */
    private static Object rollback(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        if (Tables.has(request, "tag")) {
            table.rollbackTo(Tables.text(request, "tag"));
        } else if (Tables.has(request, "snapshot")) {
            table.rollbackTo(request.get("snapshot").longValue());
        } else {
            Snapshot found = table.snapshotManager().earlierOrEqualTimeMills(request.get("timestamp_ms").longValue());
            if (found == null) {
                throw new IllegalArgumentException("no snapshot at or before " + request.get("timestamp_ms"));
            }
            table.rollbackTo(found.id());
        }
        return table.snapshotManager().latestSnapshotId();
    }

    /** retain_max, retain_min, older_than_ms (an age in milliseconds); the number of snapshots expired. */
    private static Object expireSnapshots(JsonNode request) throws Exception {
        ExpireConfig.Builder config = ExpireConfig.builder();
        config.snapshotRetainMax(Tables.has(request, "retain_max") ? request.get("retain_max").intValue() : 1);
        config.snapshotRetainMin(Tables.has(request, "retain_min") ? request.get("retain_min").intValue() : 1);
        long age = Tables.has(request, "older_than_ms") ? request.get("older_than_ms").longValue() : 0;
        config.snapshotTimeRetain(Duration.ofMillis(age));
        config.snapshotMaxDeletes(Integer.MAX_VALUE);
        return Tables.store(request).newExpireSnapshots().config(config.build()).expire();
    }

    /** before_ms (Unix time; without, tags whose retention ended); the names expired. */
    private static Object expireTags(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        TagTimeExpire expire = TagTimeExpire.create(
                table.snapshotManager(), table.tagManager(), table.store().newTagDeletion(), new ArrayList<>());
        if (Tables.has(request, "before_ms")) {
            Instant before = Instant.ofEpochMilli(request.get("before_ms").longValue());
            expire.withOlderThanTime(LocalDateTime.ofInstant(before, ZoneId.systemDefault()));
        }
        return expire.expire();
    }

    /** By the table's own partition.expiration-* options. */
    private static Object expirePartitions(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        return table.store().newPartitionExpire("interop", table).expire(Long.MAX_VALUE);
    }

    /** before_ms (Unix time; now without), dry_run; the paths deleted. */
    private static Object removeOrphans(JsonNode request) throws Exception {
        long before = Tables.has(request, "before_ms")
                ? request.get("before_ms").longValue()
                : System.currentTimeMillis() + 1;
        boolean dry = Tables.has(request, "dry_run") && request.get("dry_run").booleanValue();
        CleanOrphanFilesResult result = new LocalOrphanFilesClean(Tables.store(request), before, dry).clean();
        List<String> paths = new ArrayList<>();
        if (result.getDeletedFilesPath() != null) {
            result.getDeletedFilesPath().forEach(path -> paths.add(path.toUri().getPath()));
        }
        return paths;
    }

    private static Object compactManifests(JsonNode request) throws Exception {
        try (var commit = Tables.table(request).newBatchWriteBuilder().newCommit()) {
            commit.compactManifests();
        }
        return null;
    }

    /** name, tag (the empty branch without). */
    private static Object createBranch(JsonNode request) throws Exception {
        FileStoreTable table = Tables.store(request);
        if (Tables.has(request, "tag")) {
            table.createBranch(Tables.text(request, "name"), Tables.text(request, "tag"));
        } else {
            table.createBranch(Tables.text(request, "name"));
        }
        return null;
    }

    private static Object deleteBranch(JsonNode request) throws Exception {
        Tables.store(request).deleteBranch(Tables.text(request, "name"));
        return null;
    }

    private static Object renameBranch(JsonNode request) throws Exception {
        Tables.store(request).renameBranch(Tables.text(request, "name"), Tables.text(request, "to"));
        return null;
    }

    private static Object fastForward(JsonNode request) throws Exception {
        Tables.store(request).fastForward(Tables.text(request, "name"));
        return null;
    }

    private static Object listBranches(JsonNode request) throws Exception {
        return Tables.store(request).branchManager().branches();
    }
}
