# C types for hot_path.py when it is compiled as _hot_path. Only types: the code is in hot_path.py.
cimport cython

from ottla.protocol.records._cursor cimport PyObject_GC_UnTrack

cdef bint IS_COMPILED
cdef Py_ssize_t RECORD_OVERHEAD_BYTES
cdef object _process


cdef class BatchOutcome:
    cdef readonly object partition
    cdef public object loop
    cdef readonly bint is_done
    cdef readonly object error
    cdef readonly long long base_offset
    cdef readonly long long log_append_time_ms
    cdef object _record_errors
    cdef object _parts
    cdef object _callbacks
    cdef Py_ssize_t _record_count
    cdef bint _is_inspected

    cpdef inspect(self)
    cdef _add_callback(self, callback, arguments)
    cdef _error_of(self, Py_ssize_t index)
    cdef _call_back(self)


@cython.final
@cython.freelist(256)
cdef class Delivery:
    cdef BatchOutcome _outcome
    cdef Py_ssize_t _index
    cdef long long _timestamp


@cython.locals(
    length=Py_ssize_t, i=Py_ssize_t, h="unsigned long long", k="unsigned long long", mask="unsigned long long",
    octets="const unsigned char *",
)
cpdef unsigned long long murmur2(bytes data)

cpdef Py_ssize_t partition_for_key(bytes key, Py_ssize_t partition_count)


cdef class AppendableBatch:
    cdef public BatchOutcome outcome
    cdef public list records
    cdef public Py_ssize_t size_bytes
    cdef public bint is_full


cdef class PartitionQueue:
    cdef readonly object partition
    cdef readonly object batches
    cdef public AppendableBatch open_batch
    cdef public Py_ssize_t next_order


cdef class StickyPartition:
    cdef readonly Py_ssize_t partition
    cdef public Py_ssize_t bytes_left


cdef class TopicQueues:
    cdef readonly tuple partitions
    cdef readonly list queues
    cdef public StickyPartition sticky


cdef class RecordAppender:
    cdef readonly Py_ssize_t batch_size
    cdef readonly Py_ssize_t buffer_memory
    cdef readonly Py_ssize_t buffered_bytes
    cdef readonly object clock
    cdef readonly object clock_ns
    cdef readonly object refusal
    cdef object stamp
    cdef long long stamp_ms
    cdef public dict known_partitions
    cdef readonly dict topics
    cdef object guard

    @cython.locals(
        timestamp="long long", delivery=Delivery, topic_queues=TopicQueues, queue=PartitionQueue, batch=AppendableBatch,
        size_bytes=Py_ssize_t, count=Py_ssize_t, index=Py_ssize_t, sticky=StickyPartition, row=tuple,
    )
    cdef Delivery _try_append(self, object topic, object value, object key, object partition)

    cdef Delivery _add(
        self, AppendableBatch batch, tuple row, Delivery delivery, long long timestamp, Py_ssize_t size_bytes
    )


cdef class BlockingSender:
    cdef RecordAppender _appender
    cdef object _made_in
