/*
 * The Java client as a co-process: one JSON command per line on standard input, one JSON response per line on
 * standard output. {"op": "produce", "bootstrap": "127.0.0.1:9092", ...} gives {"result": ...} or {"error": ...}.
 * Errors have Kafka's names, so that tests can compare clients. Bytes are encoded as base64.
 */
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;

public final class Driver {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        // Only responses go to standard output; everything else that prints goes to standard error.
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode command = JSON.readTree(line);
                answer.set("result", run(command));
            } catch (Throwable failure) {
                answer.setAll(error(failure));
            }
            answers.println(JSON.writeValueAsString(answer));
        }
    }

    static JsonNode run(JsonNode command) throws Exception {
        String op = command.get("op").asText();
        if (op.startsWith("group_")) {
            return GroupCommands.run(op, command);
        }
        switch (op) {
            case "produce":
                return produce(command);
            case "consume":
                return consume(command);
            case "positions":
                return positions(command);
            case "tool":
                return tool(command);
            default:
                return op.startsWith("txn_") ? TransactionCommands.run(op, command) : AdminCommands.run(op, command);
        }
    }

    /** Sends all records, then waits for each: the answers are in the order of the records. */
    static JsonNode produce(JsonNode command) throws Exception {
        ArrayNode results = JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings(command), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode node : command.get("records")) {
                sent.add(producer.send(record(command, node)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                ObjectNode result = results.addObject();
                try {
                    RecordMetadata metadata = future.get();
                    result.put("partition", metadata.partition());
                    result.put("offset", metadata.hasOffset() ? metadata.offset() : -1);
                    result.put("timestamp", metadata.timestamp());
                } catch (ExecutionException failure) {
                    result.setAll(error(failure));
                }
            }
        }
        return results;
    }

    private static ProducerRecord<byte[], byte[]> record(JsonNode command, JsonNode node) {
        Integer partition = command.hasNonNull("partition") ? command.get("partition").asInt() : null;
        Long timestamp = node.hasNonNull("timestamp") ? node.get("timestamp").asLong() : null;
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                command.get("topic").asText(), partition, timestamp, bytes(node.get("key")), bytes(node.get("value")));
        for (JsonNode header : node.path("headers")) {
            record.headers().add(header.get(0).asText(), bytes(header.get(1)));
        }
        return record;
    }

    /** Reads one assigned partition until `count` records have arrived or the time is up. */
    static JsonNode consume(JsonNode command) throws Exception {
        ArrayNode results = JSON.createArrayNode();
        TopicPartition partition = partition(command);
        int count = command.get("count").asInt();
        long deadline = System.currentTimeMillis() + command.path("timeout_ms").asLong(20_000);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings(command), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, command.path("start").asLong(0));
            while (results.size() < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    results.add(describe(record));
                }
            }
        }
        return results;
    }

    private static ObjectNode describe(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("partition", record.partition());
        node.put("offset", record.offset());
        node.put("timestamp", record.timestamp());
        node.put("timestamp_type", record.timestampType().toString());
        node.put("key", text(record.key()));
        node.put("value", text(record.value()));
        node.put("leader_epoch", record.leaderEpoch().orElse(-1));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
        return node;
    }

    /** What a consumer learns about a partition without reading it: first, end, and offsets by time. */
    static JsonNode positions(JsonNode command) throws Exception {
        TopicPartition partition = partition(command);
        ObjectNode node = JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings(command), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            node.put("earliest", consumer.beginningOffsets(List.of(partition)).get(partition));
            node.put("latest", consumer.endOffsets(List.of(partition)).get(partition));
            if (command.hasNonNull("timestamp")) {
                var found = consumer.offsetsForTimes(Map.of(partition, command.get("timestamp").asLong())).get(partition);
                node.put("by_timestamp", found == null ? -1 : found.offset());
            }
        }
        return node;
    }

    /** Runs one of Kafka's command-line tools in this process: its exit status and what it printed. */
    static JsonNode tool(JsonNode command) throws Exception {
        List<String> arguments = new ArrayList<>();
        command.get("arguments").forEach(node -> arguments.add(node.asText()));
        Method main = Class.forName(command.get("main").asText()).getMethod("main", String[].class);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        // Some tools treat the exception as one more failure, and exit again: the first status counts.
        int[] statuses = {-1};
        Exit.setExitProcedure((status, message) -> {
            statuses[0] = statuses[0] < 0 ? status : statuses[0];
            throw new ToolExit();
        });
        try {
            main.invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof ToolExit)) {
                throw failure;
            }
        } finally {
            Exit.resetExitProcedure();
            System.setOut(before);
        }
        ObjectNode node = JSON.createObjectNode();
        node.put("status", Math.max(statuses[0], 0));
        node.put("output", printed.toString(StandardCharsets.UTF_8));
        return node;
    }

    /** Thrown in place of ending the process. */
    private static final class ToolExit extends Error {
        ToolExit() {
            super("exit", null, false, false);
        }
    }

    static TopicPartition partition(JsonNode command) {
        return new TopicPartition(command.get("topic").asText(), command.path("partition").asInt(0));
    }

    static Properties settings(JsonNode command) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", command.get("bootstrap").asText());
        command.path("config").properties().forEach(entry -> settings.put(entry.getKey(), entry.getValue().asText()));
        return settings;
    }

    /** Kafka's name of an error and its message, of the unwrapped cause. */
    static ObjectNode error(Throwable failure) {
        Throwable cause = failure;
        while (cause.getCause() != null && !(cause instanceof org.apache.kafka.common.errors.ApiException)) {
            cause = cause.getCause();
        }
        Errors known = Errors.forException(cause);
        ObjectNode node = JSON.createObjectNode();
        node.put("error", known == Errors.UNKNOWN_SERVER_ERROR ? cause.getClass().getSimpleName() : known.name());
        node.put("message", String.valueOf(cause.getMessage()));
        return node;
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String text(byte[] value) {
        return value == null ? null : Base64.getEncoder().encodeToString(value);
    }

    private Driver() {}
}
