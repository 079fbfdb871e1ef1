"""Where the fields of a record batch (format 2) lie, and the bits of its attributes. Pure.

The only definition: everything that looks into a batch without parsing it uses these names. The compiled kernels
repeat some of them as C constants, and `tests/unit/protocol/records/test_batch_layout.py` compares the two.

    position  field                     size
           0  base offset                  8
           8  batch length                 4   counts the bytes after it
          12  partition leader epoch       4
          16  magic                        1
          17  CRC-32C                      4   of everything after it
          21  attributes                   2
          23  last offset delta            4
          27  base timestamp               8   with DELETE_HORIZON: when tombstones may be removed
          35  max timestamp                8
          43  producer id                  8
          51  producer epoch               2
          53  base sequence                4
          57  record count                 4
          61  records                          compressed as a whole
"""

MAGIC = 2
"""The only format written since Apache Kafka 4.0 (KIP-724)."""

LENGTH_POSITION = 8
LENGTH_END = 12
"""The batch length counts from here, so a batch takes LENGTH_END + batch_length bytes. Kafka's LOG_OVERHEAD."""
MAGIC_POSITION = 16
CRC_END = 21
"""The checksum covers the batch from here. Base offset and leader epoch lie before it, so a broker can set them."""
ATTRIBUTES_LOW_POSITION = 22
"""The second byte of the attributes, which has all the bits below."""
HEADER_SIZE = 61

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp is the time from which tombstones and transaction markers may be removed (KIP-534)."""

HEADER_FORMAT = ">qiibIhiqqqhii"
UNTIL_CRC_FORMAT = ">qiibI"
AFTER_CRC_FORMAT = ">hiqqqhii"

RECORD_SIZE_MIN = 7
"""A record's length, attributes, two deltas, two lengths and the header count take at least a byte each."""
RECORD_OVERHEAD = 21
"""The most that a record's length (5 bytes), attributes (1), timestamp delta (10) and offset delta (5) take."""
