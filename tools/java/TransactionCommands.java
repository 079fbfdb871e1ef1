import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Transactions, step by step: a producer stays open under its handle from one command to the next. */
final class TransactionCommands {
    private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();

    static JsonNode run(String op, JsonNode command) throws Exception {
        String handle = command.path("handle").asText();
        switch (op) {
            case "txn_open":
                PRODUCERS.put(
                        handle,
                        new KafkaProducer<>(
                                Driver.settings(command), new ByteArraySerializer(), new ByteArraySerializer()));
                return null;
            case "txn_init":
                PRODUCERS.get(handle).initTransactions();
                return null;
            case "txn_begin":
                PRODUCERS.get(handle).beginTransaction();
                return null;
            case "txn_send":
                return send(PRODUCERS.get(handle), command);
            case "txn_offsets":
                PRODUCERS.get(handle)
                        .sendOffsetsToTransaction(
                                Map.of(
                                        Driver.partition(command),
                                        new OffsetAndMetadata(command.get("offset").asLong())),
                                new ConsumerGroupMetadata(command.get("group").asText()));
                return null;
            case "txn_commit":
                PRODUCERS.get(handle).commitTransaction();
                return null;
            case "txn_abort":
                PRODUCERS.get(handle).abortTransaction();
                return null;
            case "txn_close":
                PRODUCERS.remove(handle).close(Duration.ZERO);
                return null;
            default:
                return admin(op, command);
        }
    }

    private static JsonNode send(KafkaProducer<byte[], byte[]> producer, JsonNode command) throws Exception {
        ArrayNode offsets = Driver.JSON.createArrayNode();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        TopicPartition partition = Driver.partition(command);
        for (JsonNode value : command.get("values")) {
            sent.add(producer.send(
                    new ProducerRecord<>(partition.topic(), partition.partition(), null, Driver.bytes(value))));
        }
        producer.flush();
        for (Future<RecordMetadata> future : sent) {
            offsets.add(future.get().offset());
        }
        return offsets;
    }

    private static JsonNode admin(String op, JsonNode command) throws Exception {
        String id = command.path("transactional_id").asText();
        try (Admin admin = Admin.create(Driver.settings(command))) {
            switch (op) {
                case "txn_describe": {
                    var found = admin.describeTransactions(List.of(id)).description(id).get();
                    ObjectNode node = Driver.JSON.createObjectNode();
                    node.put("state", found.state().toString());
                    node.put("producer_epoch", found.producerEpoch());
                    node.put("timeout_ms", found.transactionTimeoutMs());
                    node.put("partitions", found.topicPartitions().size());
                    return node;
                }
                case "txn_list": {
                    ArrayNode states = Driver.JSON.createArrayNode();
                    for (TransactionListing listing : admin.listTransactions().all().get()) {
                        if (listing.transactionalId().equals(id)) {
                            states.add(listing.state().toString());
                        }
                    }
                    return states;
                }
                case "txn_fence":
                    admin.fenceProducers(List.of(id)).all().get();
                    return null;
                default:
                    throw new IllegalArgumentException("no such command: " + op);
            }
        } catch (ExecutionException failure) {
            throw failure.getCause() instanceof Exception cause ? cause : failure;
        }
    }

    private TransactionCommands() {}
}
