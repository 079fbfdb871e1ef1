"""The address of a pipeline's embedded broker."""

import contextlib
import socket

import pytest

from ottla.cli.pipeline.broker import is_free


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_an_address_is_free_until_something_listens_there(family: socket.AddressFamily, host: str) -> None:
    with contextlib.closing(socket.socket(family)) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listening.listen()
        port = listening.getsockname()[1]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        assert not is_free(address)
    assert is_free(address)


def test_text_that_is_no_address_is_not_free() -> None:
    assert not is_free("localhost")
    assert not is_free("localhost:http")
