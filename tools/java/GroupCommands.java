/*
 * Members of consumer groups: each polls on its own thread and commits what it has read. `group_open` starts one under
 * a name, `group_state` returns its partitions and records, `group_close` closes it.
 */
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

final class GroupCommands {
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    static JsonNode run(String op, JsonNode command) throws Exception {
        switch (op) {
            case "group_open":
                Member member = new Member(command);
                MEMBERS.put(command.get("name").asText(), member);
                member.start();
                return Driver.JSON.createObjectNode();
            case "group_state":
                return MEMBERS.get(command.get("name").asText()).state();
            case "group_close":
                Member closed = MEMBERS.remove(command.get("name").asText());
                closed.close();
                return closed.state();
            case "group_commit":
                return commit(command);
            default:
                throw new IllegalArgumentException("unknown command: " + op);
        }
    }

    /** Commits one offset with its metadata without joining, and reads it back. */
    private static JsonNode commit(JsonNode command) {
        TopicPartition partition = Driver.partition(command);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(command)) {
            consumer.assign(List.of(partition));
            consumer.commitSync(Map.of(
                    partition,
                    new OffsetAndMetadata(
                            command.get("offset").asLong(), command.get("metadata").asText())));
        }
        ObjectNode node = Driver.JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(command)) {
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            node.put("offset", committed.offset());
            node.put("metadata", committed.metadata());
        }
        return node;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode command) {
        return new KafkaConsumer<>(
                Driver.settings(command), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final List<String> topics = new ArrayList<>();
        private final ArrayNode received = Driver.JSON.createArrayNode();
        private final ArrayNode events = Driver.JSON.createArrayNode();
        private final Set<String> assignment = new TreeSet<>();
        private volatile boolean stopping;
        private volatile Throwable failure;

        Member(JsonNode command) {
            setDaemon(true);
            consumer = consumer(command);
            command.get("topics").forEach(topic -> topics.add(topic.asText()));
        }

        @Override
        public void run() {
            try (consumer) {
                // As in librdkafka, a topic that begins with ^ is a pattern.
                if (topics.get(0).startsWith("^")) {
                    consumer.subscribe(Pattern.compile(topics.get(0)), this);
                } else {
                    consumer.subscribe(topics, this);
                }
                while (!stopping) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                    synchronized (this) {
                        for (ConsumerRecord<byte[], byte[]> record : records) {
                            received.addArray()
                                    .add(record.topic())
                                    .add(record.partition())
                                    .add(record.offset())
                                    .add(Driver.text(record.value()));
                        }
                    }
                    if (!records.isEmpty()) {
                        try {
                            consumer.commitSync();
                        } catch (RebalanceInProgressException | CommitFailedException behind) {
                            // The next owner of the partition reads them again.
                        }
                    }
                }
            } catch (WakeupException woken) {
                // Closing.
            } catch (Throwable unexpected) {
                failure = unexpected;
            }
        }

        void close() throws InterruptedException {
            stopping = true;
            consumer.wakeup();
            join(20_000);
        }

        synchronized JsonNode state() {
            if (failure != null) {
                return Driver.error(failure);
            }
            ObjectNode node = Driver.JSON.createObjectNode();
            ArrayNode assigned = node.putArray("assignment");
            assignment.forEach(assigned::add);
            node.set("received", received.deepCopy());
            node.set("events", events.deepCopy());
            return node;
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            note("assigned", partitions);
            partitions.forEach(partition -> assignment.add(partition.toString()));
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            note("revoked", partitions);
            partitions.forEach(partition -> assignment.remove(partition.toString()));
        }

        private void note(String what, Collection<TopicPartition> partitions) {
            ArrayNode event = events.addArray().add(what);
            ArrayNode named = event.addArray();
            partitions.stream().map(TopicPartition::toString).sorted().forEach(named::add);
        }
    }

    private GroupCommands() {}
}
