"""Coverage-guided fuzzing of every decoder that meets bytes from outside (R8).

    PYTHONPATH=src:.extras/fuzz .venv/bin/python tools/fuzz/decoders.py TARGET [libFuzzer arguments]

A target passes when it either decodes or raises the one error it documents, within bounded memory. Anything
else (another exception, a crash, a hang) is a finding: the fuzzer writes the input to a file, and running the
target with that file replays it. `all` shares the input among all targets; its first byte chooses.
"""

import struct
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["ottla"]):
    from ottla.errors import KafkaError
    from ottla.protocol import compression, framing, record_batch
    from ottla.protocol._speedups import crc32c
    from ottla.protocol.api import API
    from ottla.protocol.compression import CompressionError
    from ottla.protocol.primitives import ProtocolError
    from ottla.testing.messages import every_message

MAX_BYTES = 1 << 20
MESSAGES = every_message()


def requests(data: bytes) -> None:
    """What a broker does with a frame: header, then body."""
    try:
        header = framing.decode_request_header(data)
        API[header.api_key].request.decode(data, header.api_version, header.body_offset)
    except (ProtocolError, KeyError):
        pass


def messages(data: bytes) -> None:
    """Any message class in any of its versions, and back: what decodes can be encoded again."""
    if len(data) < 3:
        return
    cls = MESSAGES[int.from_bytes(data[:2], "big") % len(MESSAGES)]
    version = cls.versions[data[2] % len(cls.versions)]
    try:
        message = cls.decode(data[3:], version)
    except ProtocolError:
        return
    assert cls.decode(message.encode(version), version) == message


def responses(data: bytes) -> None:
    """What a client does with a frame."""
    if len(data) < 2:
        return
    keys = list(API)
    api = API[keys[data[0] % len(keys)]]
    try:
        framing.decode_response(api.key, api.versions[data[1] % len(api.versions)], data[2:])
    except ProtocolError:
        pass


def batches(data: bytes) -> None:
    """Record batches as they come in a Produce request or a Fetch response."""
    try:
        for position, header in record_batch.iter_batches(data):
            record_batch.read_records(data, position, header, max_bytes=MAX_BYTES)
    except KafkaError:
        pass


def true_batches(data: bytes) -> None:
    """Records behind a header and a checksum that fit, so that the record decoder itself is reached."""
    if len(data) < 2:
        return
    body = struct.pack(">hiqqqhii", data[0] & 0x0F, 0, 0, 0, -1, -1, -1, data[1]) + data[2:]
    whole = struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body
    try:
        record_batch.read_records(whole, max_bytes=MAX_BYTES)
    except KafkaError:
        pass


def codecs(data: bytes) -> None:
    """Each codec's decompressor."""
    if not data:
        return
    codec = record_batch.Codec(1 + data[0] % 4)
    try:
        unpacked = compression.decompress(codec, data[1:], MAX_BYTES)
    except CompressionError:
        return
    assert len(unpacked) <= MAX_BYTES


TARGETS: dict[str, Callable[[bytes], None]] = {
    "requests": requests,
    "responses": responses,
    "messages": messages,
    "batches": batches,
    "true_batches": true_batches,
    "codecs": codecs,
}


def everything(data: bytes) -> None:
    if data:
        list(TARGETS.values())[data[0] % len(TARGETS)](data[1:])


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    target = everything if name == "all" else TARGETS.get(name)
    if target is None:
        sys.exit(f"usage: decoders.py {{all,{','.join(TARGETS)}}} [libFuzzer arguments]")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
