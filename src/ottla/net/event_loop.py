"""Which event loop brokers and clients run on."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, or that of asyncio if uvloop is not installed: it works too, only slower."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
