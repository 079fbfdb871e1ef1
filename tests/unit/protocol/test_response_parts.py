"""A response in parts: taken in pieces of any size, it is the same bytes."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.api import ApiKey
from ottla.protocol.framing import INLINE_RECORDS_BYTES, decode_response, encode_response, encode_response_parts
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.response_parts import Part, ResponseParts


class InFile:
    """Records in a file that notes what is read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.bytes_read = 0

    def __len__(self) -> int:
        return len(self.content)

    def read(self, at: int, size: int) -> bytes:
        self.bytes_read += size
        return self.content[at : at + size]


@given(st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=8), st.integers(1, 60))
def test_the_pieces_are_the_whole(contents: list[tuple[bytes, bool]], piece: int) -> None:
    whole = b"".join(content for content, _ in contents)
    parts: list[Part] = [InFile(content) if in_file else content for content, in_file in contents]
    response, taken = ResponseParts(parts, len(whole)), []
    while response.remaining:
        buffers = response.take(piece)
        assert 0 < sum(map(len, buffers)) <= piece
        taken += buffers
    assert b"".join(taken) == whole
    assert response.take(piece) == []


def test_nothing_is_read_before_it_is_taken() -> None:
    file = InFile(bytes(1000))
    response = ResponseParts([b"head", file], 1004)
    assert b"".join(response.take(104)) == b"head" + bytes(100)
    assert (file.bytes_read, response.remaining) == (100, 900)


def fetch_response(records: object) -> FetchResponse:
    data = FetchResponse.PartitionData(partition_index=0, records=records)  # type: ignore[arg-type]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="orders", partitions=[data])])


def test_a_fetch_response_is_in_parts_once_its_records_are_large() -> None:
    for version in (4, 11, 12):
        small = encode_response_parts(ApiKey.FETCH, version, 7, fetch_response(bytes(INLINE_RECORDS_BYTES - 1000)))
        assert isinstance(small, bytes)
        content = bytes(range(256)) * 600
        large = encode_response_parts(ApiKey.FETCH, version, 7, fetch_response(InFile(content)))
        assert isinstance(large, ResponseParts)
        frame = encode_response(ApiKey.FETCH, version, 7, fetch_response(InFile(content)))
        assert b"".join(large.take(10**9)) == frame
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, decoded = decode_response(ApiKey.FETCH, version, frame[4:])
        assert (correlation_id, bytes(decoded.responses[0].partitions[0].records)) == (7, content)
