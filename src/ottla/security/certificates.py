"""Reads what a broker needs from X.509 certificates: the subject as Java writes it, and how long it is valid. Pure.

A few fields of DER are read here, so that TLS needs no other library than Python's `ssl`.
"""

import base64
import binascii
import calendar
import re
from typing import NamedTuple

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)

SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 has names for. Java writes others as `1.2.3=#` and their DER bytes."""

SEQUENCE, SET, OID, UTC_TIME, VERSION = 0x30, 0x31, 0x06, 0x17, 0xA0
_ENCODINGS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""Encodings of DER's strings: UTF8String, PrintableString, T61String, IA5String, UniversalString, BMPString."""


class CertificateError(ValueError):
    """Bytes that are not a certificate."""


class Certificate(NamedTuple):
    subject: str
    """As Java's X500Principal.getName() writes it (RFC 2253): `CN=alice,OU=shop,O=Example,C=NL`."""
    not_after: int
    """Seconds since 1970."""


def read_pem_certificates(text: str) -> list[Certificate]:
    """The certificates of a PEM file, in order. Raises CertificateError."""
    return [read_certificate(der) for der in pem_to_der(text)]


def pem_to_der(text: str) -> list[bytes]:
    try:
        return [base64.b64decode("".join(body.split()), validate=True) for body in _PEM.findall(text)]
    except binascii.Error:
        raise CertificateError("a certificate is not valid base64") from None


def read_certificate(der: bytes) -> Certificate:
    """Reads a certificate in DER, as `SSLObject.getpeercert(binary_form=True)` returns it."""
    try:
        to_be_signed = _Reader(_Reader(der).take(SEQUENCE)).take(SEQUENCE)
        fields = _Reader(to_be_signed)
        if fields.next_tag() == VERSION:
            fields.take(VERSION)
        fields.any()  # serial number
        fields.take(SEQUENCE)  # signature algorithm
        fields.take(SEQUENCE)  # issuer
        validity = _Reader(fields.take(SEQUENCE))
        validity.any()  # not before
        not_after = _time(*validity.any())
        return Certificate(_name(fields.take(SEQUENCE)), not_after)
    except (IndexError, ValueError, LookupError) as error:
        raise CertificateError(f"not an X.509 certificate: {error}") from None


class _Reader:
    """Reads DER values one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    @property
    def has_more(self) -> bool:
        return self.position < len(self.data)

    def next_tag(self) -> int:
        return self.data[self.position]

    def any(self) -> tuple[int, bytes]:
        """The next value: its tag and its content."""
        tag, size, start = self.data[self.position], self.data[self.position + 1], self.position + 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(self.data[start : start + count], "big")
            start += count
        if start + size > len(self.data):
            raise ValueError("it is truncated")
        self.position = start + size
        return tag, self.data[start : start + size]

    def take(self, wanted: int) -> bytes:
        tag, content = self.any()
        if tag != wanted:
            raise ValueError(f"tag {tag:#x} instead of {wanted:#x}")
        return content


def _time(tag: int, content: bytes) -> int:
    text = content.decode("ascii")
    year = int(text[:2]) + (2000 if int(text[:2]) < 50 else 1900) if tag == UTC_TIME else int(text[:4])
    rest = text[2:] if tag == UTC_TIME else text[4:]
    month, day, hour, minute, second = (int(rest[at : at + 2]) for at in range(0, 10, 2))
    return calendar.timegm((year, month, day, hour, minute, second))


def _name(content: bytes) -> str:
    """RFC 2253 writes the last component first."""
    components = []
    relative_names = _Reader(content)
    while relative_names.has_more:
        attributes = _Reader(relative_names.take(SET))
        parts = []
        while attributes.has_more:
            attribute = _Reader(attributes.take(SEQUENCE))
            oid = _oid(attribute.take(OID))
            encoded = attribute.data[attribute.position :]
            parts.append(_attribute(oid, encoded, *attribute.any()))
        components.append("+".join(parts))
    return ",".join(reversed(components))


def _attribute(oid: str, encoded: bytes, tag: int, content: bytes) -> str:
    short = SHORT_NAMES.get(oid)
    if short is None or tag not in _ENCODINGS:
        return f"{short or oid}=#{encoded.hex()}"
    return f"{short}={_escape(content.decode(_ENCODINGS[tag]))}"


def _escape(text: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", text)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if len(escaped) > 1 and escaped.endswith(" ") and not escaped.endswith("\\ "):
        escaped = escaped[:-1] + "\\ "
    return escaped


def _oid(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
