/* The administrative half of the driver: each command is one call of the Java Admin client. */
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

final class AdminCommands {
    static JsonNode run(String op, JsonNode command) throws Exception {
        try (Admin admin = Admin.create(Driver.settings(command))) {
            switch (op) {
                case "create_topics":
                    return createTopics(admin, command);
                case "delete_topics":
                    return perItem(admin.deleteTopics(names(command, "topics")).topicNameValues());
                case "list_topics":
                    return listTopics(admin, command);
                case "describe_topics":
                    return describeTopics(admin, command);
                case "create_partitions":
                    return createPartitions(admin, command);
                case "describe_configs":
                    return describeConfigs(admin, command);
                case "alter_configs":
                    return alterConfigs(admin, command);
                case "list_offsets":
                    return listOffsets(admin, command);
                case "delete_records":
                    return deleteRecords(admin, command);
                case "describe_cluster":
                    return describeCluster(admin);
                case "describe_producers":
                    return describeProducers(admin, command);
                default:
                    throw new IllegalArgumentException("unknown command: " + op);
            }
        }
    }

    private static JsonNode createTopics(Admin admin, JsonNode command) {
        List<NewTopic> topics = new ArrayList<>();
        for (JsonNode node : command.get("topics")) {
            Optional<Integer> partitions =
                    node.hasNonNull("partitions") ? Optional.of(node.get("partitions").asInt()) : Optional.empty();
            Optional<Short> replicas = node.hasNonNull("replication_factor")
                    ? Optional.of((short) node.get("replication_factor").asInt()) : Optional.empty();
            NewTopic topic = new NewTopic(node.get("name").asText(), partitions, replicas);
            Map<String, String> configs = new HashMap<>();
            node.path("configs").properties().forEach(e -> configs.put(e.getKey(), e.getValue().asText()));
            topics.add(topic.configs(configs));
        }
        CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(command.path("validate_only").asBoolean(false));
        return perItem(admin.createTopics(topics, options).values());
    }

    private static JsonNode listTopics(Admin admin, JsonNode command) throws Exception {
        ArrayNode result = Driver.JSON.createArrayNode();
        ListTopicsOptions options = new ListTopicsOptions().listInternal(command.path("internal").asBoolean(false));
        admin.listTopics(options).names().get().stream().sorted().forEach(result::add);
        return result;
    }

    private static JsonNode describeTopics(Admin admin, JsonNode command) throws InterruptedException {
        ObjectNode result = Driver.JSON.createObjectNode();
        Map<String, KafkaFuture<TopicDescription>> futures = admin.describeTopics(names(command, "topics")).topicNameValues();
        for (Map.Entry<String, KafkaFuture<TopicDescription>> entry : futures.entrySet()) {
            ObjectNode node = result.putObject(entry.getKey());
            try {
                TopicDescription topic = entry.getValue().get();
                node.put("internal", topic.isInternal());
                node.put("has_topic_id", !topic.topicId().equals(org.apache.kafka.common.Uuid.ZERO_UUID));
                ArrayNode partitions = node.putArray("partitions");
                for (TopicPartitionInfo partition : topic.partitions()) {
                    ObjectNode described = partitions.addObject();
                    described.put("partition", partition.partition());
                    described.put("has_leader", partition.leader() != null);
                    described.put("replicas", partition.replicas().size());
                    described.put("in_sync", partition.isr().size());
                }
            } catch (ExecutionException failure) {
                node.setAll(Driver.error(failure));
            }
        }
        return result;
    }

    private static JsonNode createPartitions(Admin admin, JsonNode command) {
        Map<String, NewPartitions> wanted = new HashMap<>();
        command.get("partitions").properties()
                .forEach(e -> wanted.put(e.getKey(), NewPartitions.increaseTo(e.getValue().asInt())));
        return perItem(admin.createPartitions(wanted).values());
    }

    private static ConfigResource resource(JsonNode command) {
        return new ConfigResource(ConfigResource.Type.valueOf(command.get("type").asText()), command.get("name").asText());
    }

    private static JsonNode describeConfigs(Admin admin, JsonNode command) throws Exception {
        ConfigResource resource = resource(command);
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config config = admin.describeConfigs(List.of(resource), options).all().get().get(resource);
        ObjectNode result = Driver.JSON.createObjectNode();
        for (ConfigEntry entry : config.entries()) {
            ObjectNode node = result.putObject(entry.name());
            node.put("value", entry.value());
            node.put("source", entry.source().name());
            node.put("type", entry.type().name());
            node.put("read_only", entry.isReadOnly());
            node.put("sensitive", entry.isSensitive());
            node.put("documented", entry.documentation() != null && !entry.documentation().isEmpty());
            ArrayNode synonyms = node.putArray("synonyms");
            entry.synonyms().forEach(s -> synonyms.addArray().add(s.name()).add(s.value()).add(s.source().name()));
        }
        return result;
    }

    private static JsonNode alterConfigs(Admin admin, JsonNode command) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        for (JsonNode node : command.get("operations")) {
            String value = node.path(2).isNull() ? null : node.path(2).asText();
            operations.add(new AlterConfigOp(
                    new ConfigEntry(node.get(1).asText(), value), AlterConfigOp.OpType.valueOf(node.get(0).asText())));
        }
        admin.incrementalAlterConfigs(Map.of(resource(command), operations)).all().get();
        return Driver.JSON.nullNode();
    }

    private static JsonNode listOffsets(Admin admin, JsonNode command) throws Exception {
        TopicPartition partition = Driver.partition(command);
        ObjectNode result = Driver.JSON.createObjectNode();
        for (JsonNode node : command.get("specs")) {
            OffsetSpec spec;
            switch (node.asText()) {
                case "earliest":
                    spec = OffsetSpec.earliest();
                    break;
                case "latest":
                    spec = OffsetSpec.latest();
                    break;
                case "max_timestamp":
                    spec = OffsetSpec.maxTimestamp();
                    break;
                case "earliest_local":
                    spec = OffsetSpec.earliestLocal();
                    break;
                case "latest_tiered":
                    spec = OffsetSpec.latestTiered();
                    break;
                default:
                    spec = OffsetSpec.forTimestamp(node.asLong());
            }
            ObjectNode found = result.putObject(node.asText());
            try {
                ListOffsetsResult.ListOffsetsResultInfo info =
                        admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
                found.put("offset", info.offset());
                found.put("timestamp", info.timestamp());
            } catch (ExecutionException failure) {
                found.setAll(Driver.error(failure));
            }
        }
        return result;
    }

    private static JsonNode deleteRecords(Admin admin, JsonNode command) throws Exception {
        TopicPartition partition = Driver.partition(command);
        RecordsToDelete before = RecordsToDelete.beforeOffset(command.get("before").asLong());
        long low = admin.deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition).get().lowWatermark();
        return Driver.JSON.getNodeFactory().numberNode(low);
    }

    private static JsonNode describeCluster(Admin admin) throws Exception {
        var cluster = admin.describeCluster();
        ObjectNode result = Driver.JSON.createObjectNode();
        result.put("nodes", cluster.nodes().get().size());
        Node controller = cluster.controller().get();
        result.put("controller_is_a_node", cluster.nodes().get().stream().anyMatch(n -> n.id() == controller.id()));
        result.put("has_cluster_id", cluster.clusterId().get() != null && !cluster.clusterId().get().isEmpty());
        return result;
    }

    private static JsonNode describeProducers(Admin admin, JsonNode command) throws Exception {
        TopicPartition partition = Driver.partition(command);
        ArrayNode result = Driver.JSON.createArrayNode();
        for (ProducerState state :
                admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers()) {
            ObjectNode node = result.addObject();
            node.put("producer_epoch", state.producerEpoch());
            node.put("last_sequence", state.lastSequence());
        }
        return result;
    }

    private static List<String> names(JsonNode command, String field) {
        List<String> names = new ArrayList<>();
        command.get(field).forEach(node -> names.add(node.asText()));
        return names;
    }

    /** {name: "ok" or Kafka's error name} for calls that answer per item. */
    private static <T> ObjectNode perItem(Map<String, KafkaFuture<T>> futures) {
        ObjectNode result = Driver.JSON.createObjectNode();
        futures.forEach((name, future) -> {
            try {
                future.get();
                result.put(name, "ok");
            } catch (Exception failure) {
                result.put(name, Driver.error(failure).get("error").asText());
            }
        });
        return result;
    }

    private AdminCommands() {}
}
